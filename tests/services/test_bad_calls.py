"""What callers do wrong, and what goes wrong inside: the status, its sentence, and nothing stored.

Calls are made with the generated stub, as a client in another language would make them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from kvboost.checksum import checksum
from kvboost.client import CacheClient
from kvboost.errors import CacheUnavailableError, LayoutMismatchError, QuotaError
from kvboost.index import LocalCache
from kvboost.protocols import ChunkCache
from kvboost.services.cache_server import SERVICE_NAME, CacheServicer
from kvboost.services.cache_server.staging import Staging
from kvboost.services.grpc_server import start_server
from kvboost.types import CacheInfo, ChunkKV, MatchQuery, MatchResult, Namespace
from kvboost.v1 import cache_pb2 as pb
from kvboost.v1 import cache_pb2_grpc as pb_grpc
from kvboost.wire import convert
from kvboost.wire.address import parse_address
from tests.contracts.chunks import LAYOUT, ask, namespace, offer, payload_of, words

NS = namespace()
KEY = NS.key
A, B = words("a"), words("b")
MAX_BYTES = 1 << 20
Code = grpc.StatusCode


@contextmanager
def serving(cache: ChunkCache) -> Iterator[str]:
    servicer = CacheServicer(cache, CacheInfo("test", MAX_BYTES, "", 2))
    server = start_server(servicer.register, [SERVICE_NAME], [parse_address("127.0.0.1:0")])
    try:
        yield str(server.addresses[0])
    finally:
        server.stop(0)


@pytest.fixture
def cache() -> Iterator[LocalCache]:
    cache = LocalCache(MAX_BYTES)
    cache.open(NS)
    yield cache
    cache.close()


@pytest.fixture
def stub(cache: LocalCache) -> Iterator[pb_grpc.CacheServiceStub]:
    with serving(cache) as address, grpc.insecure_channel(address) as channel:
        yield pb_grpc.CacheServiceStub(channel)


def refused(call, code: grpc.StatusCode, *words: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == code, caught.value.details()
    for word in words:
        assert word in caught.value.details()


def put_messages() -> list[pb.PutRequest]:
    """A good put of two chunks, each in two frames."""
    request = offer(KEY, [A, B])
    chunks = [convert.new_chunk_to_proto(c) for c in request.chunks]
    header = pb.PutHeader(namespace=KEY, token_ids=request.token_ids, chunks=chunks)
    messages = [pb.PutRequest(header=header)]
    for i, chunk in enumerate(request.chunks):
        payload, half = bytes(chunk.payload), len(chunk.payload) // 2
        messages.append(pb.PutRequest(frame=pb.Frame(chunk=i, offset=0, data=payload[:half])))
        messages.append(pb.PutRequest(frame=pb.Frame(chunk=i, offset=half, data=payload[half:])))
    return messages


def test_a_put_by_generated_code_is_stored(stub, cache):
    assert stub.Put(iter(put_messages()), timeout=10).receipt.stored == 2
    (kv, _) = cache.fetch(KEY, [m.donor.chunk_id for m in cache.match(ask(KEY, [A, B])).matches])
    assert bytes(kv.verified()) == payload_of(A, 0)
    frames = list(stub.Fetch(pb.FetchRequest(namespace=KEY, chunk_ids=[kv.chunk_id]), timeout=10))
    assert b"".join(f.data for f in frames) == payload_of(A, 0)
    assert (frames[0].total_bytes, frames[0].checksum) == (len(payload_of(A, 0)), checksum(payload_of(A, 0)))


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_a_truncated_put_stores_nothing(stub, cache, kept):
    refused(lambda: stub.Put(iter(put_messages()[:kept]), timeout=10), Code.DATA_LOSS, "bytes")
    assert cache.stats().stored_bytes == 0


def test_a_wrong_checksum_stores_nothing(stub, cache):
    messages = put_messages()
    messages[-1].frame.data = bytes(len(messages[-1].frame.data))
    refused(lambda: stub.Put(iter(messages), timeout=10), Code.DATA_LOSS, "chunks[1].checksum")
    assert cache.stats().stored_bytes == 0


def test_frames_out_of_order_store_nothing(stub, cache):
    messages = put_messages()
    messages[1], messages[2] = messages[2], messages[1]
    refused(lambda: stub.Put(iter(messages), timeout=10), Code.DATA_LOSS, "offset")
    assert cache.stats().stored_bytes == 0


def test_a_put_larger_than_the_budget_is_refused_before_its_bytes_come(stub):
    (message, *_) = put_messages()
    message.header.chunks[0].nbytes = MAX_BYTES + 1
    refused(lambda: stub.Put(iter([message]), timeout=10), Code.RESOURCE_EXHAUSTED, "budget")


def test_puts_under_way_share_one_budget_by_what_has_arrived():
    staging = Staging(max_bytes=10)
    with staging.put(10) as take, staging.put(10) as take_too:
        take(6)
        take_too(4)
        with pytest.raises(QuotaError, match="later") as caught:
            take(1)
        assert caught.value.retry_after_s
        with pytest.raises(QuotaError, match="budget"), staging.put(11):
            pass
    assert staging.held_bytes == 0


def changed(change) -> list[pb.PutRequest]:
    messages = put_messages()
    change(messages)
    return messages


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda m: m.clear(), "header"),
        (lambda m: m.pop(0), "header"),
        (lambda m: m.insert(1, m[0]), "header"),
        (lambda m: m.insert(0, pb.PutRequest()), "part"),
        (lambda m: m.append(m[-1]), "frame"),
        (lambda m: m[0].header.ClearField("namespace"), "namespace"),
        (lambda m: m[0].header.chunks[1].ClearField("span"), "chunks[1].span"),
        (lambda m: m[0].header.token_ids.pop(), "chunks[1].span"),
        (lambda m: setattr(m[0].header.chunks[1], "nbytes", 0), "chunks[1].nbytes"),
    ],
)
def test_a_bad_put_is_refused_by_field(stub, cache, change, field):
    refused(lambda: stub.Put(iter(changed(change)), timeout=10), Code.INVALID_ARGUMENT, field)
    assert cache.stats().stored_bytes == 0


def test_bytes_that_do_not_fit_the_layout_are_refused(stub, cache):
    request = offer(KEY, [A])
    header = pb.PutHeader(namespace=KEY, token_ids=A, chunks=[convert.new_chunk_to_proto(request.chunks[0])])
    header.chunks[0].nbytes, header.chunks[0].checksum = 6, checksum(b"sixsix")
    messages = [pb.PutRequest(header=header), pb.PutRequest(frame=pb.Frame(data=b"sixsix"))]
    refused(
        lambda: stub.Put(iter(messages), timeout=10), Code.INVALID_ARGUMENT, "payload", str(16 * LAYOUT.token_bytes)
    )


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.MatchRequest(namespace=KEY, token_ids=[1], chunk_ends=[2], chunk_texts="a", max_nominees=1), "token_ids"),
        (pb.MatchRequest(namespace=KEY, token_ids=[1], chunk_ends=[1], max_nominees=1), "chunk_texts"),
        (pb.MatchRequest(namespace=KEY, threshold=-0.1, max_nominees=1), "threshold"),
        (pb.MatchRequest(namespace=KEY), "max_nominees"),
    ],
)
def test_a_bad_match_is_refused_by_field(stub, request_, field):
    refused(lambda: stub.Match(request_, timeout=10), Code.INVALID_ARGUMENT, field)


def test_a_bad_namespace_is_refused_by_field(stub):
    message = convert.namespace_to_proto(NS)
    message.layout.dtype = "float8"
    refused(lambda: stub.Describe(pb.DescribeRequest(namespace=message), timeout=10), Code.INVALID_ARGUMENT, "dtype")
    for call in (stub.Evict, stub.Drop, stub.Fetch):
        kind = {stub.Evict: pb.EvictRequest, stub.Drop: pb.DropRequest, stub.Fetch: pb.FetchRequest}[call]
        refused(lambda call=call, kind=kind: answer_of(call(kind(), timeout=10)), Code.INVALID_ARGUMENT, "namespace")


def answer_of(response):
    return list(response) if hasattr(response, "__next__") else response


def test_unknown_namespaces_are_not_found(stub):
    for call in (
        lambda: stub.Match(pb.MatchRequest(namespace="nowhere", max_nominees=1), timeout=10),
        lambda: list(stub.Fetch(pb.FetchRequest(namespace="nowhere"), timeout=10)),
        lambda: stub.Evict(pb.EvictRequest(namespace="nowhere"), timeout=10),
        lambda: stub.Put(iter([pb.PutRequest(header=pb.PutHeader(namespace="nowhere"))]), timeout=10),
    ):
        refused(call, Code.NOT_FOUND, "nowhere")


@pytest.mark.parametrize("method", ["Match", "Describe", "Fetch", "Put"])
def test_garbage_is_an_invalid_argument(cache, method):
    with serving(cache) as address, grpc.insecure_channel(address) as channel:
        path = f"/{SERVICE_NAME}/{method}"
        garbage = b"\xff\xff\xff"
        calls = {
            "Fetch": lambda: list(channel.unary_stream(path)(garbage, timeout=10)),
            "Put": lambda: channel.stream_unary(path)(iter([garbage]), timeout=10),
        }
        refused(calls.get(method, lambda: channel.unary_unary(path)(garbage, timeout=10)), Code.INVALID_ARGUMENT)


class Faulty(LocalCache):
    """A cache with a fault of its own, of the kind whose text quotes what it worked on."""

    def match(self, query: MatchQuery) -> MatchResult:
        raise KeyError(query.chunks[0].text)

    def open(self, namespace: Namespace) -> CacheInfo:
        raise LayoutMismatchError("namespace x is known with another layout; drop it")


def test_an_internal_fault_tells_an_id_and_nothing_else(caplog):
    cache = Faulty(MAX_BYTES)
    query = ask(KEY, [A])
    secret = query.chunks[0].text
    with serving(cache) as address, caplog.at_level(logging.DEBUG):
        client = CacheClient(address)
        with pytest.raises(CacheUnavailableError, match=r"internal error, id [0-9a-f]{8}") as caught:
            client.match(query)
        client.close()
    incident = str(caught.value).rsplit(" ", 1)[1]
    assert secret not in str(caught.value)
    assert "KeyError" not in str(caught.value)
    assert incident in caplog.text
    assert "KeyError" in caplog.text
    assert "in match" in caplog.text  # the stack
    assert secret not in caplog.text


def test_a_layout_that_does_not_fit_is_a_failed_precondition():
    with serving(Faulty(MAX_BYTES)) as address, grpc.insecure_channel(address) as channel:
        stub = pb_grpc.CacheServiceStub(channel)
        request = pb.DescribeRequest(namespace=convert.namespace_to_proto(NS))
        refused(lambda: stub.Describe(request, timeout=10), Code.FAILED_PRECONDITION, "layout")
        client = CacheClient(address)
        with pytest.raises(LayoutMismatchError, match="known with another layout"):
            client.open(NS)
        client.close()


class Slow(LocalCache):
    """A cache that is slower than any deadline; it counts how many chunks were taken from it."""

    def __init__(self) -> None:
        super().__init__(MAX_BYTES)
        self.wake = threading.Event()
        self.taken = 0
        self.left = threading.Event()

    def match(self, query: MatchQuery) -> MatchResult:
        self.wake.wait(30)
        return MatchResult()

    def fetch(self, namespace, chunk_ids) -> Iterator[ChunkKV]:
        try:
            for chunk_id in chunk_ids:
                self.taken += 1
                yield ChunkKV(chunk_id, b"x", checksum(b"x"))
                self.wake.wait(0.05)
        finally:
            self.left.set()


def test_deadlines_are_honoured_on_both_sides():
    cache = Slow()
    with serving(cache) as address:
        client = CacheClient(address, match_timeout_s=0.2, fetch_timeout_s=0.4)
        with pytest.raises(CacheUnavailableError, match="deadline"):
            client.match(ask(KEY, [A]))
        with pytest.raises(CacheUnavailableError, match="deadline"):
            list(client.fetch(KEY, range(1, 1000)))
        assert cache.left.wait(10), "the server went on streaming to nobody"
        assert cache.taken < 1000
        cache.wake.set()
        client.close()


def test_the_server_stops_when_the_reader_stops():
    cache = Slow()
    with serving(cache) as address:
        client = CacheClient(address)
        stream = client.fetch(KEY, range(1, 1000))
        next(stream)
        stream.close()
        assert cache.left.wait(10), "the server went on streaming to nobody"
        cache.wake.set()
        client.close()
