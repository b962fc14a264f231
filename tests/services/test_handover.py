"""K/V handed over in shared memory between real processes, and what happens when one of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvboost.client import CacheClient
from kvboost.errors import CacheUnavailableError
from kvboost.types import Handover, KVLayout, NewChunk, PutReceipt, PutRequest, Span
from tests.contracts.chunks import ask, finite, namespace, words
from tests.servers import RunningServer, cache_server

WIDE = KVLayout(8, 4, 64, 64, "float32")
"""16 KiB a token, so that 64 tokens are a frame of 1 MiB."""
NS = namespace(layout=WIDE)
KEY = NS.key
MIB = 1 << 20


def until(done: Callable[[], bool], patience_s: float = 20.0) -> None:
    end_s = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < end_s, "did not happen"
        time.sleep(0.01)


def document(name: str, chunks: int, tokens: int = 64) -> list[tuple[int, ...]]:
    return [words(f"{name}{i}", tokens) for i in range(chunks)]


def put(client: CacheClient, doc: list[tuple[int, ...]], key: str = KEY) -> dict[int, bytes]:
    """Store random bytes for every chunk of a document; return them by chunk id, without any that has
    left for another already."""
    payloads = [finite(os.urandom(len(tokens) * WIDE.token_bytes)) for tokens in doc]
    ends = [sum(map(len, doc[: i + 1])) for i in range(len(doc))]
    chunks = tuple(
        NewChunk(Span(end - len(tokens), end), f"text {end}", True, payload)
        for tokens, end, payload in zip(doc, ends, payloads, strict=True)
    )
    receipt = client.put(PutRequest(key, tuple(t for tokens in doc for t in tokens), chunks))
    assert receipt == PutReceipt(stored=len(doc))
    by_start = {chunk.span.start: payload for chunk, payload in zip(chunks, payloads, strict=True)}
    return {m.donor.chunk_id: by_start[m.target.start] for m in client.match(ask(key, doc)).matches}


def arena_files(base: Path) -> set[Path]:
    return set(base.glob("kvboost-*/*/*.kv"))


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVBOOST_CACHE__ARENA_DIR", str(tmp_path / "arena"))
    return tmp_path / "arena"


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/cache.sock"


@pytest.fixture
def server(base: Path, address: str) -> Iterator[RunningServer]:
    with cache_server(address, "--max-bytes", "16MiB") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[CacheClient]:
    client = CacheClient(server.address)
    client.open(NS)
    yield client
    client.close()


def fetch(client: CacheClient, ids: object) -> dict[int, bytes]:
    return {kv.chunk_id: bytes(kv.verified()) for kv in client.fetch(KEY, list(ids))}  # type: ignore[call-overload]


def test_shared_memory_and_frames_hand_over_the_same_bytes(server: RunningServer, client: CacheClient) -> None:
    stored = put(client, document("a", 5, 100))
    plain = CacheClient(server.address, shared_memory=False)
    plain.open(NS)
    assert fetch(client, stored) == fetch(plain, stored) == stored
    assert (client.handover, plain.handover) == (Handover.SHARED_MEMORY, Handover.FRAMES)
    plain.close()


def test_what_is_read_is_the_servers_memory_and_not_a_copy(base: Path, client: CacheClient) -> None:
    ((chunk_id, payload),) = put(client, document("a", 1)).items()
    (kv,) = client.fetch(KEY, [chunk_id])
    (holder,) = [file for file in arena_files(base) if payload in file.read_bytes()]
    with holder.open("r+b") as file:
        file.seek(file.read().index(payload))
        file.write(b"changed!")
    assert bytes(memoryview(kv.payload)[:8]) == b"changed!"


def test_what_a_client_stored_it_has_mapped_before_it_asks(base: Path, client: CacheClient) -> None:
    stored = put(client, document("a", 4))
    mapped = Path(f"/proc/{os.getpid()}/maps").read_text()
    assert all(str(file) in mapped for file in arena_files(base))
    assert fetch(client, stored) == stored
    client.drop(KEY)
    client.open(NS)
    fetch(client, put(client, document("b", 1)))
    mapped = Path(f"/proc/{os.getpid()}/maps").read_text()
    assert f"{KEY}-" in mapped
    assert "(deleted)" not in "".join(line for line in mapped.splitlines() if str(base) in line)


def test_an_evicted_chunk_stays_for_its_reader_until_it_lets_go(client: CacheClient) -> None:
    stored = put(client, document("a", 3))
    held = list(client.fetch(KEY, list(stored)))
    client.evict(KEY, list(stored))
    for i in range(30):  # twice the budget
        put(client, document(f"b{i:x}", 1))
    assert fetch(client, stored) == {}
    assert {kv.chunk_id: bytes(kv.verified()) for kv in held} == stored


def test_the_budget_is_usable_again_after_many_fetches(client: CacheClient) -> None:
    for i in range(40):
        stored = put(client, document(f"{i:x}", 3))
        assert fetch(client, stored) == stored
        assert client.handover is Handover.SHARED_MEMORY
    assert client.stats().stored_bytes <= 16 * MIB


def test_beyond_what_a_lease_may_pin_chunks_come_as_frames(client: CacheClient) -> None:
    stored = put(client, document("a", 12))
    chunks = list(client.fetch(KEY, list(stored)))
    ways = [kv.handover for kv in chunks]
    assert ways == [Handover.SHARED_MEMORY] * 8 + [Handover.FRAMES] * 4  # half of the budget
    assert {kv.chunk_id: bytes(kv.verified()) for kv in chunks} == stored
    del chunks
    # What was let go is told to the server in the background.
    until(lambda: all(kv.handover is Handover.SHARED_MEMORY for kv in client.fetch(KEY, list(stored)[:8])))


_READER = """
import sys, time
from kvboost.client import CacheClient
client = CacheClient(sys.argv[1])
held = list(client.fetch(sys.argv[2], [int(i) for i in sys.argv[3:]]))
print(*{kv.handover for kv in held}, flush=True)
time.sleep(120)
"""


def test_the_pins_of_a_killed_client_are_free_at_once(server: RunningServer, client: CacheClient) -> None:
    stored = put(client, document("a", 8))
    argv = [sys.executable, "-c", _READER, server.address, KEY, *map(str, stored)]
    reader = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline().strip() == "shared memory"
    # The other pins 8 MiB of at most 12 over all leases.
    some = list(stored)[:6]
    assert [kv.handover for kv in client.fetch(KEY, some)] == [Handover.SHARED_MEMORY] * 4 + [Handover.FRAMES] * 2
    reader.send_signal(signal.SIGKILL)
    reader.wait()
    until(lambda: {kv.handover for kv in list(client.fetch(KEY, some))} == {Handover.SHARED_MEMORY})
    reader.stdout.close()


def test_a_killed_server_leaves_its_reader_the_memory_and_the_next_one_serves_it_again(
    base: Path, address: str, server: RunningServer, client: CacheClient
) -> None:
    stored = put(client, document("a", 4))
    held = list(client.fetch(KEY, list(stored)))
    left = arena_files(base)
    server.kill()
    with pytest.raises(CacheUnavailableError):
        fetch(client, stored)
    with cache_server(address, "--max-bytes", "16MiB"):
        assert not left & arena_files(base)  # leftovers went when it started
        assert {kv.chunk_id: bytes(kv.verified()) for kv in held} == stored

        def answers() -> bool:
            try:
                client.open(NS)
            except CacheUnavailableError:
                return False
            return True

        until(answers)
        again = put(client, document("a", 4))
        assert fetch(client, again) == again  # one way or the other
        until(lambda: fetch(client, again) == again and client.handover is Handover.SHARED_MEMORY)
    assert {kv.chunk_id: bytes(kv.verified()) for kv in held} == stored


def test_tenants_have_files_of_their_own(base: Path, client: CacheClient) -> None:
    mine = put(client, document("a", 2))
    before = arena_files(base)
    other = namespace("other", WIDE)
    client.open(other)
    theirs = put(client, document("b", 2), other.key)
    contents = {file: file.read_bytes() for file in arena_files(base)}
    for payloads, elsewhere in ((mine, arena_files(base) - before), (theirs, before)):
        for payload in payloads.values():
            assert [f for f, content in contents.items() if payload in content]
            assert not [f for f in elsewhere if payload in contents[f]]
    client.drop(other.key)
    assert arena_files(base) == before


def test_a_client_that_does_not_see_the_files_is_sent_frames(base: Path, server: RunningServer) -> None:
    client = CacheClient(server.address)
    client.open(NS)
    stored = put(client, document("a", 2))
    (proof,) = base.glob("kvboost-*/*/proof")
    for break_it in (lambda: proof.write_bytes(b"of another host"), proof.unlink):
        break_it()
        late = CacheClient(server.address)
        late.open(NS)
        assert fetch(late, stored) == stored
        assert late.handover is Handover.FRAMES
        late.close()
    # A lease that was granted goes on.
    assert fetch(client, stored) == stored
    client.close()


def test_segments_that_vanish_cost_shared_memory_and_no_request(base: Path, client: CacheClient) -> None:
    stored = put(client, document("a", 2))
    assert client.handover is Handover.SHARED_MEMORY
    for file in arena_files(base):
        file.unlink()
    assert fetch(client, stored) == stored
    assert client.handover is Handover.FRAMES


def test_idle_clients_take_no_worker_and_a_signal_ends_the_server_at_once(base: Path, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/few.sock"
    with cache_server(address, "--max-bytes", "16MiB", "--workers", "1") as server:
        clients = [CacheClient(address) for _ in range(4)]
        clients[0].open(NS)
        stored = put(clients[0], document("a", 1))
        for client in clients:
            client.open(NS)
            assert fetch(client, stored) == stored
            assert client.handover is Handover.SHARED_MEMORY
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
        assert list(base.glob("kvboost-*/*")) == []
        for client in clients:
            client.close()


def test_a_process_with_a_lease_ends_without_closing_it(server: RunningServer) -> None:
    script = (
        "import sys; from kvboost.client import CacheClient; from tests.contracts.chunks import namespace\n"
        "client = CacheClient(sys.argv[1]); client.open(namespace()); print(client.handover)"
    )
    argv = [sys.executable, "-c", script, server.address]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == ("shared memory", "")


def test_no_arena_means_frames(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBOOST_CACHE__ARENA_DIR", "none")
    with cache_server(address, "--max-bytes", "16MiB"):
        client = CacheClient(address)
        client.open(NS)
        stored = put(client, document("a", 2))
        assert fetch(client, stored) == stored
        assert client.handover is Handover.FRAMES
        client.close()


def test_an_arena_dir_that_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = os.environ | {"KVBOOST_CACHE__ARENA_DIR": str(tmp_path / "file")}
    argv = ["serve-cache", "--address", "127.0.0.1:0", "--embedder", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "kvboost.services.cli", *argv],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 2
    assert "arena_dir" in done.stderr
    assert "Traceback" not in done.stderr
