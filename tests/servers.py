"""Real server processes for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

START_TIMEOUT_S = 120


@dataclass(frozen=True)
class RunningServer:
    """A running server; ``address`` is what a client needs, ``process`` may be killed at will."""

    address: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self.process.kill()
        self.process.wait()


@contextmanager
def cache_server(address: str = "127.0.0.1:0", *arguments: str, embedder: str = "none") -> Iterator[RunningServer]:
    """Run ``kvboost serve-cache`` on ``address`` (``host:port`` or ``unix:/path``) until the block ends.

    Port 0 takes a free one. ``arguments`` go to the command as they are.
    """
    where = ["--unix", address[5:], "--no-tcp"] if address.startswith("unix:") else ["--address", address]
    with run_server("serve-cache", [*where, "--embedder", embedder, *arguments]) as server:
        yield server


@contextmanager
def runtime_server(cache_address: str, model_dir: str | Path, *arguments: str) -> Iterator[RunningServer]:
    """Run ``kvboost serve-runtime`` with the model of a directory until the block ends.

    ``arguments`` go to the command as they are.
    """
    where = ["--address", "127.0.0.1:0", "--cache", cache_address, "--model", str(model_dir), "--threads", "1"]
    with run_server("serve-runtime", [*where, *arguments]) as server:
        yield server


@contextmanager
def gateway_server(runtimes: Sequence[str], cache_address: str = "", *arguments: str) -> Iterator[RunningServer]:
    """Run ``kvboost serve-gateway`` on a free port until the block ends; ``address`` is its URL."""
    where = ["--address", "127.0.0.1:0", *(part for runtime in runtimes for part in ("--runtime", runtime))]
    cache = ["--cache", cache_address] if cache_address else []
    with run_server("serve-gateway", [*where, *cache, *arguments], speaks_grpc=False) as server:
        yield server


@contextmanager
def together(*servers: AbstractContextManager[RunningServer]) -> Iterator[list[RunningServer]]:
    """Start several servers at the same time: each spends most of its start importing."""
    with ExitStack() as stack:
        with ThreadPoolExecutor(len(servers)) as pool:
            starts = [pool.submit(server.__enter__) for server in servers]
        for server, start in zip(servers, starts, strict=True):
            if start.exception() is None:
                stack.push(server)
        yield [start.result() for start in starts]


@contextmanager
def run_server(command: str, arguments: Sequence[str], speaks_grpc: bool = True) -> Iterator[RunningServer]:
    """Run a serving subcommand of ``kvboost`` that prints "listening on ADDRESS"; kill it at the end."""
    argv = [sys.executable, "-m", "kvboost.services.cli", command, *arguments]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        address = _announced(process)
        if speaks_grpc:
            _wait_until_serving(address)
        yield RunningServer(address, process)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def _announced(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("listening on "):
            return line.split()[2]
    raise RuntimeError(f"the server ended with status {process.wait()} before it listened")


def _wait_until_serving(address: str) -> None:
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        answer = check(health_pb2.HealthCheckRequest(), timeout=START_TIMEOUT_S, wait_for_ready=True)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise RuntimeError(f"the server at {address} says {answer.status}")
