"""Prompts and answers about gRPC's 4 MiB: sent in pieces, or refused in one sentence before they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from kvboost.client import CacheClient
from kvboost.errors import CacheUnavailableError, MessageSizeError
from kvboost.index import LocalCache
from kvboost.index.arena import Arena
from kvboost.services.cache_server import SERVICE_NAME, CacheServicer
from kvboost.services.cache_server.leases import Leases
from kvboost.services.grpc_server import start_server
from kvboost.types import (
    CacheInfo,
    CacheStats,
    Chunk,
    Donor,
    Handover,
    Match,
    MatchQuery,
    MatchResult,
    NewChunk,
    PutReceipt,
    PutRequest,
    Span,
    Tier,
)
from kvboost.v1 import cache_pb2 as pb
from kvboost.v1 import cache_pb2_grpc as pb_grpc
from kvboost.wire import convert, pieces
from kvboost.wire.address import parse_address
from tests.contracts.chunks import LAYOUT, namespace

NS = namespace()
KEY = NS.key
MAX_BYTES = 64 << 20
LONG = 128 << 10


class Many(LocalCache):
    """A cache with more namespaces and longer donors than this test could store."""

    def stats(self) -> CacheStats:
        stats = super().stats()
        return replace(
            stats, namespaces=tuple(replace(stats.namespaces[0], tenant=f"{i:0>100}") for i in range(40_000))
        )

    def match(self, query: MatchQuery) -> MatchResult:
        donors = [Donor(i, tuple(range(1 << 30, (1 << 30) + 5000)), 0, b"p" * 32, b"q" * 32, True) for i in range(200)]
        return MatchResult(
            tuple(Match(Span(i, i + 1), donor, Span(0, 1), Tier.EXACT) for i, donor in enumerate(donors))
        )


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[LocalCache, Leases | None], CacheClient]]:
    with ExitStack() as stack:

        def connect(cache: LocalCache, leases: Leases | None = None) -> CacheClient:
            stack.callback(cache.close)
            cache.open(NS)
            servicer = CacheServicer(cache, CacheInfo("test", MAX_BYTES, "", 2), leases)
            server = start_server(servicer.register, [SERVICE_NAME], [parse_address(f"unix:{tmp_path}/large.sock")])
            stack.callback(server.stop, 0)
            client = CacheClient(str(server.addresses[0]), match_timeout_s=100)
            stack.callback(client.close)
            client.open(NS)
            return client

        yield connect


def prompt(tokens: int, step: int, text: str) -> MatchQuery:
    ids = tuple(range(tokens))
    return MatchQuery(KEY, ids, tuple(Chunk(Span(i, i + step), text) for i in range(0, tokens, step)))


def test_a_prompt_of_128k_tokens_goes_all_the_way(connect: Callable[..., CacheClient], tmp_path: Path) -> None:
    arena = Arena(MAX_BYTES, tmp_path)
    client = connect(LocalCache(MAX_BYTES, allocator=arena), Leases(arena, MAX_BYTES, MAX_BYTES))
    query = prompt(LONG, 16, "x" * 70)
    payload = bytes(16 * LAYOUT.token_bytes)
    chunks = tuple(NewChunk(chunk.span, chunk.text, True, payload) for chunk in query.chunks)
    assert client.put(PutRequest(KEY, query.token_ids, chunks)) == PutReceipt(stored=8192)
    matches = client.match(query).matches
    assert sum(len(match.target) for match in matches) == LONG
    ids = [match.donor.chunk_id for match in matches]
    fetched = list(client.fetch(KEY, ids))  # the handles of all take two messages
    assert [kv.chunk_id for kv in fetched] == ids
    assert {kv.handover for kv in fetched} == {Handover.SHARED_MEMORY}


@pytest.mark.parametrize(("tokens", "text"), [(1_000_000, "x" * 100), (LONG, "=" * 2500)])
def test_a_look_up_over_the_limit_is_sent_in_pieces(
    connect: Callable[..., CacheClient], tokens: int, text: str
) -> None:
    client = connect(LocalCache(MAX_BYTES))
    query = prompt(tokens, 50 if tokens > LONG else 64, text)
    assert convert.query_to_proto(query).ByteSize() > pieces.MAX_MESSAGE_BYTES
    assert client.match(query).matches == ()
    assert client.stats().namespaces[0].query_tokens == tokens


def test_answers_over_the_limit_come_in_pieces(connect: Callable[..., CacheClient]) -> None:
    client = connect(Many(MAX_BYTES))
    assert len(client.stats().namespaces) == 40_000
    assert len(client.match(prompt(200, 50, "x")).matches) == 200
    assert client.evict(KEY, range(1, 600_000)) == 0


def test_a_caller_that_knows_no_pieces_is_told_of_them(connect: Callable[..., CacheClient]) -> None:
    client = connect(Many(MAX_BYTES))
    with grpc.insecure_channel(client.address) as channel, pytest.raises(grpc.RpcError) as caught:
        pb_grpc.CacheServiceStub(channel).Stats(pb.StatsRequest(), timeout=30)
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert "Large" in caught.value.details()


def test_what_no_pieces_hold_is_refused_before_it_is_sent(
    connect: Callable[..., CacheClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(LocalCache(MAX_BYTES))
    with pytest.raises(MessageSizeError, match="fetch fewer"):
        list(client.fetch(KEY, range(600_000)))
    ids = tuple(range(1 << 30, (1 << 30) + 900_000))
    with pytest.raises(MessageSizeError, match="shorter"):
        client.put(PutRequest(KEY, ids, (NewChunk(Span(0, 16), "x", True, bytes(16 * LAYOUT.token_bytes)),)))
    monkeypatch.setattr(pieces, "MAX_LARGE_BYTES", 5 << 20)
    with pytest.raises(MessageSizeError, match="ask for less"):
        client.match(prompt(LONG, 64, "=" * 3000))
    assert client.stats().stored_bytes == 0


@pytest.mark.parametrize(
    ("sent", "code", "words"),
    [
        ([], grpc.StatusCode.INVALID_ARGUMENT, "pieces"),
        ([pb.Piece(method="Drop")], grpc.StatusCode.INVALID_ARGUMENT, "'Drop'"),
        ([pb.Piece(method="Match", data=b"\xff\xff")], grpc.StatusCode.INVALID_ARGUMENT, "Match"),
        ([pb.Piece(method="Match", data=bytes(3 << 20))] * 22, grpc.StatusCode.OUT_OF_RANGE, "67,108,864"),
    ],
)
def test_bad_pieces_are_refused(
    connect: Callable[..., CacheClient], sent: list[pb.Piece], code: grpc.StatusCode, words: str
) -> None:
    client = connect(LocalCache(MAX_BYTES))
    with grpc.insecure_channel(client.address) as channel, pytest.raises(grpc.RpcError) as caught:
        list(pb_grpc.CacheServiceStub(channel).Large(iter(sent), timeout=60))
    assert caught.value.code() is code
    assert words in caught.value.details()


def test_a_server_that_knows_no_pieces_is_named(connect: Callable[..., CacheClient]) -> None:
    client = connect(LocalCache(MAX_BYTES))
    transport = client._transport
    transport._large = transport._channel.stream_stream(
        f"/{SERVICE_NAME}/NoSuchCall", pb.Piece.SerializeToString, pb.Piece.FromString
    )
    with pytest.raises(CacheUnavailableError, match="older"):
        client.evict(KEY, range(600_000))
