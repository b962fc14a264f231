"""Pins: what bounds them, what ends them, and what a reader whose pin ended is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from kvboost.client import CacheClient
from kvboost.client.lease import Lease, LeaseRefusedError
from kvboost.client.transport import Transport
from kvboost.errors import CacheUnavailableError, DataLossError, QuotaError
from kvboost.index import LocalCache
from kvboost.index.arena import Arena
from kvboost.services.cache_server import SERVICE_NAME, CacheServicer
from kvboost.services.cache_server.leases import Leases
from kvboost.services.grpc_server import start_server
from kvboost.types import CacheInfo, Handover
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire.address import parse_address
from tests.contracts.chunks import LAYOUT, ask, namespace, offer, payload_of, words

NS = namespace()
KEY = NS.key
CHUNK_BYTES = 16 * LAYOUT.token_bytes
BUDGET = 1 << 20


def until(done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end_s, "did not happen"
        time.sleep(0.01)


class Host:
    """A cache with an arena and its leases in this process, served when a client is asked for."""

    def __init__(self, folder: Path, stack: ExitStack, **settings: float) -> None:
        self.arena = Arena(BUDGET, folder)
        self.cache = LocalCache(BUDGET, allocator=self.arena)
        stack.callback(self.cache.close)
        self.leases = Leases(self.arena, 4 * CHUNK_BYTES, 6 * CHUNK_BYTES, **settings)  # type: ignore[arg-type]
        self.cache.open(NS)
        self._stack = stack
        self._address = f"unix:{folder}/lease.sock"

    def put(self, count: int) -> list[int]:
        chunks = [words(f"{i:x}") for i in range(count)]
        self.cache.put(offer(KEY, chunks))
        return [m.donor.chunk_id for m in self.cache.match(ask(KEY, chunks)).matches]

    def pin(self, name: str, ids: list[int]) -> tuple[list[pb.Handle], list[int]]:
        handles, left = self.leases.pin(name, self.cache.fetch(KEY, ids))
        return handles, [kv.chunk_id for kv in left]

    def serve(self) -> CacheServicer:
        servicer = CacheServicer(self.cache, CacheInfo("test", BUDGET, "", 1), self.leases)
        server = start_server(servicer.register, [SERVICE_NAME], [parse_address(self._address)])
        self._stack.callback(server.stop, 0)
        return servicer

    def client(self) -> CacheClient:
        client = CacheClient(self._address)
        self._stack.callback(client.close)
        client.open(NS)
        return client

    def reuse_memory(self) -> None:
        """Give free memory of the namespace to other chunks."""
        for i in range(3 * BUDGET // CHUNK_BYTES // 16):
            self.cache.put(offer(KEY, [words(f"{i:x}z", 256)]))


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    with ExitStack() as stack:
        yield lambda **settings: Host(tmp_path, stack, **settings)


def test_a_lease_pins_what_it_may_and_all_of_them_together_too(make_host: Callable[..., Host]) -> None:
    host = make_host()
    ids = host.put(6)
    one, two = host.leases.open().lease, host.leases.open().lease
    handles, left = host.pin(one, ids)
    assert ([h.chunk for h in handles], left) == (ids[:4], ids[4:])
    assert len(host.pin(two, ids)[0]) == 2
    assert host.leases.pinned_bytes == 6 * CHUNK_BYTES
    host.leases.hear(one, [handles[0].pin, handles[0].pin, 999], [])
    assert host.leases.pinned_bytes == 5 * CHUNK_BYTES
    assert len(host.pin(two, ids)[0]) == 1
    host.leases.end(one)
    host.leases.end(one)
    assert host.leases.pinned_bytes == 3 * CHUNK_BYTES
    assert host.pin("unknown", ids) == ([], ids)
    assert host.pin(one, ids) == ([], ids)


def test_pins_that_nobody_speaks_for_end_and_the_others_stay(make_host: Callable[..., Host]) -> None:
    host = make_host(pin_s=0.5)
    ids = host.put(2)
    name = host.leases.open().lease
    kept, forgotten = host.pin(name, ids)[0]
    end_s = time.monotonic() + 1.0
    while time.monotonic() < end_s:
        host.leases.hear(name, [], [kept.pin])
        time.sleep(0.02)
    host.leases.expire()
    assert host.leases.pinned_bytes == CHUNK_BYTES
    host.leases.hear(name, [forgotten.pin], [forgotten.pin])
    assert host.leases.pinned_bytes == CHUNK_BYTES


def test_leases_are_counted(make_host: Callable[..., Host]) -> None:
    host = make_host(max_leases=2)
    first = host.leases.open()
    host.leases.open()
    with pytest.raises(QuotaError, match="lease"):
        host.leases.open()
    host.leases.end(first.lease)
    host.leases.open()
    host.leases.close()
    with pytest.raises(CacheUnavailableError):
        host.leases.open()


def test_a_client_speaks_for_what_it_keeps(make_host: Callable[..., Host]) -> None:
    host = make_host(pin_s=1.0)
    host.serve()
    client = host.client()
    ids = host.put(2)
    kept = next(client.fetch(KEY, ids))
    until(lambda: host.leases.pinned_bytes == CHUNK_BYTES)
    host.cache.evict(KEY, ids)
    for _ in range(16):
        time.sleep(0.1)
        host.leases.expire()
    host.reuse_memory()
    assert host.leases.pinned_bytes == CHUNK_BYTES
    assert bytes(kept.verified()) == payload_of(words("0"), 0)
    del kept
    until(lambda: host.leases.pinned_bytes == 0)


def test_a_reader_whose_memory_was_given_away_is_told(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.serve()
    client = host.client()
    ids = host.put(3)
    stream = client.fetch(KEY, ids)
    chunk = next(stream)
    assert chunk.handover is Handover.SHARED_MEMORY
    host.cache.evict(KEY, ids)
    host.leases.close()  # as after its time, while the client slept
    host.reuse_memory()
    with pytest.raises(DataLossError, match="given to another"):
        next(stream)


def test_a_handle_that_came_too_late_costs_the_lease_and_not_the_request(
    make_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host()
    host.serve()
    client = host.client()
    ids = host.put(3)
    pin = host.leases.pin

    def outdated(*arguments: object) -> object:
        handles, left = pin(*arguments)  # type: ignore[arg-type]
        for handle in handles:
            handle.generation += 1
        return handles, left

    monkeypatch.setattr(host.leases, "pin", outdated)
    assert [kv.handover for kv in client.fetch(KEY, ids)] == [Handover.FRAMES] * 3
    monkeypatch.undo()
    until(lambda: {kv.handover for kv in client.fetch(KEY, ids)} == {Handover.SHARED_MEMORY})
    until(lambda: host.leases.pinned_bytes == 0)


def test_a_failed_fetch_leaves_what_others_read_alone(
    make_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host()
    host.serve()
    client = host.client()
    ids = host.put(2)
    held = next(client.fetch(KEY, ids[:1]))
    pin = host.leases.pin

    def outdated(*arguments: object) -> object:
        handles, left = pin(*arguments)  # type: ignore[arg-type]
        for handle in handles:
            handle.generation += 1
        return handles, left

    monkeypatch.setattr(host.leases, "pin", outdated)
    assert [kv.handover for kv in client.fetch(KEY, ids[1:])] == [Handover.FRAMES]
    monkeypatch.undo()
    host.cache.evict(KEY, ids)
    host.reuse_memory()
    assert bytes(held.verified()) == payload_of(words("0"), 0)
    assert host.leases.pinned_bytes >= CHUNK_BYTES
    del held
    until(lambda: host.leases.pinned_bytes == 0)


def test_a_dead_server_is_not_asked_twice(make_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host()
    host.serve()
    client = host.client()
    ids = host.put(1)
    asked: list[int] = []

    def fails(namespace: str, chunk_ids: list[int]) -> None:
        asked.append(1)
        raise CacheUnavailableError("the cache is gone; come back later")

    monkeypatch.setattr(host.cache, "fetch", fails)
    with pytest.raises(CacheUnavailableError, match="gone"):
        list(client.fetch(KEY, ids))
    assert len(asked) == 1


def mapped(folder: Path) -> set[str]:
    """Return the segments in a directory that this process maps, those that were removed included."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(".kv")[0].rsplit("/", 1)[1] for line in lines if f"{folder}/" in line and ".kv" in line}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are looked up in /proc")
def test_an_idle_client_lets_go_of_segments_that_are_gone(make_host: Callable[..., Host], tmp_path: Path) -> None:
    host = make_host(pin_s=0.4)
    host.serve()
    client = host.client()
    held = next(client.fetch(KEY, host.put(2)))
    before = mapped(tmp_path)
    assert before
    host.cache.drop(KEY)
    assert bytes(held.verified()) == payload_of(words("0"), 0)
    del held
    until(lambda: host.leases.pinned_bytes == 0)
    host.cache.open(NS)
    host.put(1)  # the arena takes memory back when it is asked for some
    until(lambda: not before & mapped(tmp_path))


def test_a_server_that_ends_ends_its_leases_and_a_client_goes_on_with_frames(make_host: Callable[..., Host]) -> None:
    host = make_host()
    servicer = host.serve()
    client = host.client()
    ids = host.put(2)
    held = list(client.fetch(KEY, ids))
    servicer.close()
    until(lambda: host.leases.pinned_bytes == 0)
    until(lambda: {kv.handover for kv in client.fetch(KEY, ids)} == {Handover.FRAMES})
    assert [bytes(kv.verified()) for kv in held] == [bytes(kv.verified()) for kv in client.fetch(KEY, ids)]


def test_a_refusal_is_told_from_a_dead_server(make_host: Callable[..., Host], tmp_path: Path) -> None:
    host = make_host(max_leases=1)
    host.serve()
    transport = Transport(f"unix:{tmp_path}/lease.sock")
    lease = Lease(transport.lease, 10)
    with pytest.raises(LeaseRefusedError, match="lease"):
        Lease(transport.lease, 10)
    lease.close()
    with pytest.raises(CacheUnavailableError) as caught:
        Lease(Transport(f"unix:{tmp_path}/none.sock").lease, 10)
    assert not isinstance(caught.value, LeaseRefusedError)
    transport.close()
    with pytest.raises(CacheUnavailableError, match="closed"):
        Lease(transport.lease, 10)


def test_words_from_a_stranger_are_no_harm(make_host: Callable[..., Host], tmp_path: Path) -> None:
    host = make_host()
    host.serve()
    with grpc.insecure_channel(f"unix:{tmp_path}/lease.sock") as channel:
        call = channel.stream_stream("/kvboost.v1.CacheService/Lease")(iter([b"\xff\xff"]), timeout=10)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    until(lambda: host.leases.open() is not None)
