"""A put sends what the cache wants and nothing else, and what one client is sending no other sends too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from kvboost.client import CacheClient
from kvboost.errors import DataLossError, InputError, TensorError, UnknownNamespaceError
from kvboost.index import LocalCache
from kvboost.services.cache_server import SERVICE_NAME, CacheServicer
from kvboost.services.cache_server.promises import Promises
from kvboost.services.grpc_server import start_server
from kvboost.types import CacheInfo, KVLayout, NewChunk, PutReceipt, PutRequest
from kvboost.v1 import cache_pb2 as pb
from kvboost.v1 import cache_pb2_grpc as pb_grpc
from kvboost.wire import convert
from kvboost.wire.address import parse_address
from tests.contracts.chunks import ask, join, namespace, payload_of, spans, words
from tests.proxy import CuttingProxy
from tests.servers import cache_server

NS = namespace(layout=KVLayout(8, 2, 32, 32, "float16"))  # 2 KiB a token
KEY = NS.key
DOCUMENT = [words(f"{i:x}") for i in range(64)]  # 2 MiB
CLIENTS = 8
MAX_BYTES = 1 << 25


def document(chunks: list[tuple[int, ...]] = DOCUMENT) -> PutRequest:
    return PutRequest(
        KEY,
        join(chunks),
        tuple(
            NewChunk(span, "text", True, payload_of(tokens, span.start, layout=NS.layout))
            for span, tokens in zip(spans(chunks), chunks, strict=True)
        ),
    )


@pytest.mark.parametrize("at_once", [False, True])
def test_cold_clients_send_one_document_once(at_once: bool) -> None:
    offered = document()
    nbytes = sum(memoryview(chunk.payload).nbytes for chunk in offered.chunks)
    with cache_server("127.0.0.1:0", "--max-bytes", "64MiB") as server:
        proxy = CuttingProxy(server.address)
        clients = [CacheClient(proxy.address, shared_memory=False) for _ in range(CLIENTS)]
        for client in clients:
            client.open(NS)
        with ThreadPoolExecutor(CLIENTS if at_once else 1) as pool:
            receipts = list(pool.map(lambda client: client.put(offered), clients))
        assert sum(receipt.stored for receipt in receipts) == len(DOCUMENT)
        assert sum(receipt.duplicate for receipt in receipts) == (CLIENTS - 1) * len(DOCUMENT)
        assert nbytes < proxy.sent_bytes < 1.2 * nbytes
        matches = clients[-1].match(ask(KEY, DOCUMENT)).matches
        found = {
            kv.chunk_id: bytes(kv.verified()) for kv in clients[-1].fetch(KEY, [m.donor.chunk_id for m in matches])
        }
        for match in matches:
            tokens, start = match.donor.token_ids, match.donor.start
            assert found[match.donor.chunk_id] == payload_of(tokens, start, layout=NS.layout)
        assert len(found) == len(DOCUMENT)
        for client in clients:
            client.close()
        proxy.close()


@pytest.fixture
def cache() -> Iterator[LocalCache]:
    cache = LocalCache(MAX_BYTES)
    cache.open(NS)
    yield cache
    cache.close()


@pytest.fixture
def address(cache: LocalCache, tmp_path: Path) -> Iterator[str]:
    servicer = CacheServicer(cache, CacheInfo("test", MAX_BYTES, "", 2))
    server = start_server(servicer.register, [SERVICE_NAME], [parse_address(f"unix:{tmp_path}/offers.sock")])
    yield str(server.addresses[0])
    server.stop(0)


@pytest.fixture
def client(address: str) -> Iterator[CacheClient]:
    client = CacheClient(address)
    client.open(NS)
    yield client
    client.close()


def test_only_what_is_new_is_sent(client: CacheClient, cache: LocalCache, monkeypatch: pytest.MonkeyPatch) -> None:
    client.put(document(DOCUMENT[:40]))
    sent: list[int] = []
    put = cache.put

    def counted(request: PutRequest) -> PutReceipt:
        sent.append(len(request.chunks))
        return put(request)

    monkeypatch.setattr(cache, "put", counted)
    assert client.put(document()) == PutReceipt(stored=24, duplicate=40)
    assert client.put(document()) == PutReceipt(duplicate=64)
    assert sent == [24]


def test_the_servers_hashes_decide_and_an_offer_stores_nothing(address: str, cache: LocalCache) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.CacheServiceStub(channel)
        asked = convert.offer_to_proto(document(DOCUMENT[:2]))
        answer = stub.Offer(asked, timeout=10)
        assert list(answer.wanted) == [0, 1]
        assert answer.offer
        # The same positions of another sequence are other chunks.
        other = convert.offer_to_proto(document([DOCUMENT[1], DOCUMENT[0]]))
        assert list(stub.Offer(other, timeout=10).wanted) == [0, 1]
        again = stub.Offer(asked, timeout=10)
        assert (list(again.wanted), again.receipt.duplicate) == ([], 2)
    assert cache.stats().stored_bytes == 0


def test_what_its_client_fails_to_send_is_wanted_from_the_next(address: str, client: CacheClient) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.CacheServiceStub(channel)
        offered = document(DOCUMENT[:2])
        answer = stub.Offer(convert.offer_to_proto(offered), timeout=10)
        header = pb.PutHeader(
            namespace=KEY,
            token_ids=offered.token_ids,
            chunks=[convert.new_chunk_to_proto(chunk) for chunk in offered.chunks],
            offer=answer.offer,
        )
        assert client.put(offered) == PutReceipt(duplicate=2)
        with pytest.raises(grpc.RpcError):
            stub.Put(iter([pb.PutRequest(header=header)]), timeout=10)
    assert client.put(offered) == PutReceipt(stored=2)


def test_a_promise_ends_with_its_time_its_last_chunk_or_a_failure() -> None:
    promises = Promises(0.0)
    assert promises.claim([b"a"])[1] == [True]
    assert promises.claim([b"a"])[1] == [True]
    promises = Promises(1000.0)
    name, free = promises.claim([b"a", b"b", b"b"])
    assert free == [True, True, True]
    assert promises.claim([b"a", b"c"])[1] == [False, True]
    with promises.kept(name, 2):
        assert promises.claim([b"b"])[1] == [False]
    assert promises.claim([b"b"])[1] == [False]
    with promises.kept(name, 1):
        pass
    assert promises.claim([b"a"])[1] == [True]
    name, _ = promises.claim([b"d"])
    with pytest.raises(DataLossError), promises.kept(name, 1):
        raise DataLossError("lost")
    assert promises.claim([b"d"])[1] == [True]
    with promises.kept("unknown", 1):
        pass


def test_a_server_that_knows_no_offers_is_sent_everything(client: CacheClient) -> None:
    transport = client._transport
    transport._offer = transport._channel.unary_unary(  # what an older server says
        f"/{SERVICE_NAME}/NoSuchCall", pb.OfferRequest.SerializeToString, pb.OfferResponse.FromString
    )
    assert client.put(document(DOCUMENT[:3])) == PutReceipt(stored=3)
    assert client.put(document(DOCUMENT[:3])) == PutReceipt(duplicate=3)


def test_a_bad_offer_is_refused_by_field(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.CacheServiceStub(channel)
        chunk = pb.OfferedChunk(span=pb.Span(start=0, end=4))
        for request, field in (
            (pb.OfferRequest(token_ids=[1]), "namespace"),
            (pb.OfferRequest(namespace=KEY, token_ids=[1, 2, 3], chunks=[chunk]), "chunks[0].span"),
            (pb.OfferRequest(namespace=KEY, token_ids=[1], chunks=[pb.OfferedChunk()]), "chunks[0].span"),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Offer(request, timeout=10)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert field in caught.value.details()
        with pytest.raises(grpc.RpcError) as caught:
            stub.Offer(pb.OfferRequest(namespace="nowhere"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_payload_of_the_wrong_size_is_named_by_the_callers_number(client: CacheClient) -> None:
    client.put(document(DOCUMENT[:1]))
    good = document(DOCUMENT[:2])
    short = NewChunk(good.chunks[1].span, "text", True, b"short")
    with pytest.raises(TensorError, match=r"chunks\[1\]"):
        client.put(PutRequest(KEY, good.token_ids, (good.chunks[0], short)))
    with pytest.raises(InputError, match=r"chunks\[1\].span"):
        client.put(PutRequest(KEY, good.token_ids[:20], good.chunks))
    with pytest.raises(UnknownNamespaceError):
        client.put(PutRequest("nowhere", good.token_ids, good.chunks))


def test_clients_that_begin_together_share_the_work(client: CacheClient, address: str) -> None:
    barrier = threading.Barrier(4)
    offered = document()

    def put(one: CacheClient) -> PutReceipt:
        one.open(NS)
        barrier.wait(30)
        return one.put(offered)

    clients = [CacheClient(address) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        receipts = list(pool.map(put, clients))
    assert sum(receipt.stored for receipt in receipts) == len(DOCUMENT)
    assert client.put(offered) == PutReceipt(duplicate=len(DOCUMENT))
    for one in clients:
        one.close()
