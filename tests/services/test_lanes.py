"""One kind of call never takes the threads of another, and nobody keeps a thread by saying nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from kvboost.client import CacheClient
from kvboost.errors import CacheBusyError, CacheUnavailableError
from kvboost.index import LocalCache
from kvboost.services.cache_server import SERVICE_NAME, CacheServicer
from kvboost.services.cache_server.lanes import cache_lanes
from kvboost.services.grpc_server import start_server
from kvboost.types import CacheInfo, MatchQuery, MatchResult, PutReceipt
from kvboost.v1 import cache_pb2 as pb
from kvboost.v1 import cache_pb2_grpc as pb_grpc
from kvboost.wire.address import parse_address
from tests.contracts.chunks import LAYOUT, ask, namespace, offer, words
from tests.servers import cache_server

NS = namespace()
KEY = NS.key
A, B = words("a"), words("b")
LIMIT_S = 60
MAX_BYTES = 64 << 20
Code = grpc.StatusCode


class Callers:
    """Clients that begin calls and then say nothing."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        self._stack = stack
        self._address = address
        self.channel = self._connect()
        self.hold = threading.Event()
        stack.callback(self.hold.set)

    def put(self, nbytes: int = 16 * LAYOUT.token_bytes) -> Any:
        chunk = pb.ChunkHeader(span=pb.Span(start=0, end=16), nbytes=nbytes, exact=True)
        header = pb.PutHeader(namespace=KEY, token_ids=A, chunks=[chunk])
        return pb_grpc.CacheServiceStub(self.channel).Put.future(self._then_nothing(pb.PutRequest(header=header)))

    def fetch(self, chunk_ids: list[int]) -> Any:
        """Ask for chunks on a connection of its own, and read one frame."""
        call = pb_grpc.CacheServiceStub(self._connect()).Fetch(pb.FetchRequest(namespace=KEY, chunk_ids=chunk_ids))
        next(call)
        return call

    def lease(self) -> Any:
        return pb_grpc.CacheServiceStub(self.channel).Lease(self._then_nothing())

    def headers_only(self, method: str) -> Any:
        """Begin a call of one request and do not send it."""
        return self.channel.stream_unary(f"/{SERVICE_NAME}/{method}").future(self._then_nothing())

    def reflection(self) -> Any:
        return reflection_pb2_grpc.ServerReflectionStub(self.channel).ServerReflectionInfo(self._then_nothing())

    def watch(self) -> Any:
        return health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest())

    def _connect(self) -> grpc.Channel:
        # Without the probe, what a reader may be sent that does not read stays small.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        return self._stack.enter_context(grpc.insecure_channel(self._address, options=options))

    def _then_nothing(self, *messages: Any) -> Iterator[Any]:
        yield from messages
        self.hold.wait(LIMIT_S)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@contextmanager
def serving(cache: LocalCache, **limits: Any) -> Iterator[str]:
    servicer = CacheServicer(cache, CacheInfo("test", MAX_BYTES, "", 2), lanes=cache_lanes(**limits))
    server = start_server(servicer.register, [SERVICE_NAME], [parse_address("127.0.0.1:0")])
    try:
        yield str(server.addresses[0])
    finally:
        server.stop(0)


def large_chunk(cache: CacheClient | LocalCache) -> list[int]:
    """Store a chunk of more bytes than a connection takes from a reader that does not read; return its id."""
    tokens = words("L", 1 << 18)  # 8 MiB
    cache.put(offer(KEY, [tokens]))
    return [m.donor.chunk_id for m in cache.match(ask(KEY, [tokens])).matches]


def check_health(channel: grpc.Channel) -> None:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_server_full_of_idle_calls_answers_all_others(stack: ExitStack, tmp_path: Path) -> None:
    address = stack.enter_context(cache_server("127.0.0.1:0", "--max-bytes", "64MiB")).address
    client = CacheClient(address, timeout_s=5, match_timeout_s=5, shared_memory=False)
    client.open(NS)
    ids = large_chunk(client)
    callers = Callers(address, stack)
    calls = [callers.put() for _ in range(8)]
    calls += [callers.lease() for _ in range(20)]
    calls += [callers.reflection() for _ in range(3)]
    watchers = [callers.watch() for _ in range(20)]
    assert all(next(w).status == health_pb2.HealthCheckResponse.SERVING for w in watchers)
    readers = [callers.fetch(ids) for _ in range(8)]
    assert client.describe().max_bytes == MAX_BYTES
    assert client.stats().stored_bytes
    assert len(client.match(ask(KEY, [A])).matches) == 0
    assert client.evict(KEY, [1]) == 0
    check_health(callers.channel)
    assert not any(call.done() for call in calls[:28])
    assert all(reader.is_active() for reader in readers)
    client.close()


@pytest.mark.parametrize("begin", ["put", "headers_only", "reflection"])
def test_idle_calls_are_ended_and_their_threads_go_to_others(stack: ExitStack, begin: str) -> None:
    cache = LocalCache(MAX_BYTES)
    cache.open(NS)
    address = stack.enter_context(serving(cache, workers=2, idle_s=0.3))
    callers = Callers(address, stack)
    calls = [callers.headers_only("Match") if begin == "headers_only" else getattr(callers, begin)() for _ in range(4)]
    client = CacheClient(address)
    assert client.put(offer(KEY, [B])) == PutReceipt(stored=1)
    assert client.match(ask(KEY, [B])).matches
    for call in calls:
        assert call.exception(LIMIT_S).code() == Code.CANCELLED
    client.close()


def test_a_reader_that_does_not_read_is_ended(stack: ExitStack) -> None:
    cache = LocalCache(MAX_BYTES)
    cache.open(NS)
    ids = large_chunk(cache)
    address = stack.enter_context(serving(cache, workers=1, idle_s=0.3))
    idle = Callers(address, stack).fetch(ids)
    client = CacheClient(address, shared_memory=False)
    assert len(list(client.fetch(KEY, ids))) == 1
    with pytest.raises(grpc.RpcError) as caught:
        list(idle)
    assert caught.value.code() == Code.CANCELLED
    client.close()


def test_a_stream_that_trickles_ends_too(stack: ExitStack) -> None:
    cache = LocalCache(MAX_BYTES)
    cache.open(NS)
    address = stack.enter_context(serving(cache, idle_s=60, stream_s=0.5))
    chunk = pb.ChunkHeader(span=pb.Span(start=0, end=16), nbytes=16 * LAYOUT.token_bytes, exact=True)
    header = pb.PutHeader(namespace=KEY, token_ids=A, chunks=[chunk])
    stop = threading.Event()

    def trickle() -> Iterator[pb.PutRequest]:
        yield pb.PutRequest(header=header)
        for i in range(16 * LAYOUT.token_bytes):
            yield pb.PutRequest(frame=pb.Frame(offset=i, data=b"x"))
            if stop.wait(0.05):
                return

    channel = stack.enter_context(grpc.insecure_channel(address))
    call = pb_grpc.CacheServiceStub(channel).Put.future(trickle())
    assert call.exception(LIMIT_S).code() == Code.CANCELLED
    stop.set()


def test_a_put_that_announces_the_whole_budget_bars_nobody(stack: ExitStack) -> None:
    cache = LocalCache(MAX_BYTES)
    cache.open(NS)
    address = stack.enter_context(serving(cache))
    callers = Callers(address, stack)
    greedy = [callers.put(MAX_BYTES) for _ in range(2)]
    client = CacheClient(address)
    assert client.put(offer(KEY, [B])) == PutReceipt(stored=1)
    assert not any(call.done() for call in greedy)
    client.close()


class Held(LocalCache):
    """A cache whose look-ups wait until they are let go."""

    def __init__(self) -> None:
        super().__init__(MAX_BYTES)
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)

    def match(self, query: MatchQuery) -> MatchResult:
        self.begun.release()
        self.go.wait(LIMIT_S)
        return MatchResult()


def in_background(call: Callable[[], object], count: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=call, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_one_call_too_many_is_told_at_once_when_to_come_back(stack: ExitStack) -> None:
    cache = Held()
    address = stack.enter_context(serving(cache, workers=1))
    stack.callback(cache.go.set)
    client = CacheClient(address, match_timeout_s=LIMIT_S)
    client.open(NS)
    lost: list[CacheUnavailableError] = []
    refused = threading.Semaphore(0)

    def look_up() -> None:
        try:
            client.match(ask(KEY, [A]))
        except CacheUnavailableError as error:
            lost.append(error)
            refused.release()

    threads = in_background(look_up, 12)
    for _ in range(3):  # one runs, eight wait
        assert refused.acquire(timeout=LIMIT_S)
    cache.go.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(lost) == 3
    for error in lost:
        assert isinstance(error, CacheBusyError)
        assert error.retry_after_s == 0.5
        assert "lookups" in str(error)
    assert client.describe().max_bytes == MAX_BYTES
    client.close()
