"""What the frames of the cache service stand against: K/V in single gRPC messages of 64 MiB over TCP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import numpy.typing as npt

from kvboost.errors import KVBoostError

UNARY_BYTES = 64 << 20
_METHOD = "/kvboost.evals.Unary/Read"
_CALL_TIMEOUT_S = 60.0
# gRPC refuses messages of more than 4 MiB by default.
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]


def random_bytes(count: int, seed: int) -> npt.NDArray[np.uint8]:
    """Return the same random bytes in every process, which are finite numbers in every float format of K/V."""
    # One bit of every exponent is 0; what is not finite would not be stored.
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8) & np.uint8(0xBF)


@contextmanager
def unary_reader(total_bytes: int, seed: int) -> Iterator[Callable[[int], bytes]]:
    """Serve random bytes from another process, and give a function that reads 64 MiB of them from an offset."""
    command = [sys.executable, "-m", "evals._unary", str(total_bytes), str(seed)]
    root = Path(__file__).resolve().parent.parent
    process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise KVBoostError(f"the server of unary messages ended with status {process.wait()}")
        with grpc.insecure_channel(address, options=_OPTIONS) as channel:
            call = channel.unary_unary(_METHOD)
            yield lambda offset: call(str(offset).encode(), timeout=_CALL_TIMEOUT_S, wait_for_ready=True)
    finally:
        process.kill()
        process.communicate()


def _serve(total_bytes: int, seed: int) -> None:
    """Serve until standard input ends."""
    content = random_bytes(total_bytes, seed)

    def read(request: bytes, context: grpc.ServicerContext) -> bytes:
        offset = int(request)
        return content[offset : offset + UNARY_BYTES].tobytes()

    service, method = _METHOD.strip("/").split("/")
    server = grpc.server(ThreadPoolExecutor(2), options=_OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(read)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
