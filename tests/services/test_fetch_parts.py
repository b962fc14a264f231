"""K/V sent layer by layer over all chunks of a fetch."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from kvboost.checksum import checksum as xxh3
from kvboost.client import CacheClient
from kvboost.client.parts import read_parts
from kvboost.errors import ChecksumError, DataLossError, InputError, TruncatedStreamError, UnknownNamespaceError
from kvboost.index import LocalCache
from kvboost.protocols import PartSource
from kvboost.published import PublishedCache
from kvboost.services.cache_server import SERVICE_NAME, CacheServicer
from kvboost.services.grpc_server import start_server
from kvboost.types import CacheInfo, ChunkKV, KVLayout, NewChunk, PutRequest, Span
from kvboost.wire.address import parse_address
from kvboost.wire.frames import FRAME_BYTES, Frame, split_parts
from tests.contracts.chunks import ask, finite, namespace, words

LAYERS = 4
LAYOUT = KVLayout(LAYERS, 8, 64, 64, "float32")
NS = namespace(layout=LAYOUT)
KEY = NS.key
TOKENS = (16, 40, 96)  # the last has layers of 1.5 MiB, more than a frame


@pytest.fixture
def client(tmp_path: Path) -> Iterator[CacheClient]:
    with ExitStack() as stack:
        cache = LocalCache(64 << 20)
        stack.callback(cache.close)
        servicer = CacheServicer(cache, CacheInfo("test", 64 << 20, "", 1))
        server = start_server(servicer.register, [SERVICE_NAME], [parse_address(f"unix:{tmp_path}/parts.sock")])
        stack.callback(server.stop, 0)
        client = CacheClient(str(server.addresses[0]))
        stack.callback(client.close)
        client.open(NS)
        yield client


@pytest.fixture
def stored(client: CacheClient) -> dict[int, bytes]:
    docs = [words(f"p{n}", n) for n in TOKENS]
    payloads = [finite(os.urandom(n * LAYOUT.token_bytes)) for n in TOKENS]
    ends = np.cumsum(TOKENS).tolist()
    chunks = [NewChunk(Span(e - n, e), "x", True, p) for n, e, p in zip(TOKENS, ends, payloads, strict=True)]
    client.put(PutRequest(KEY, tuple(t for doc in docs for t in doc), tuple(chunks)))
    matches = client.match(ask(KEY, docs)).matches
    return {m.donor.chunk_id: p for m, p in zip(matches, payloads, strict=True)}


@pytest.mark.parametrize("parts", [1, 2, LAYERS])
def test_parts_come_layer_by_layer_and_make_up_the_chunks(client, stored, parts):
    ids = list(stored)
    got = list(client.fetch_parts(KEY, [*ids, ids[0], 123], parts))
    assert [(p.part, p.chunk_id) for p in got] == [(part, i) for part in range(parts) for i in ids]
    for chunk_id, payload in stored.items():
        assert b"".join(bytes(p.payload) for p in got if p.chunk_id == chunk_id) == payload
    assert all(memoryview(p.payload).readonly for p in got)


def test_nothing_there_is_nothing_sent(client, stored):
    assert list(client.fetch_parts(KEY, [], LAYERS)) == []
    assert list(client.fetch_parts(KEY, [7], LAYERS)) == []
    assert list(client.fetch_parts(KEY, [7], 2**32 - 1)) == []


def test_parts_that_cannot_be_are_refused(client, stored):
    with pytest.raises(InputError, match="parts"):
        list(client.fetch_parts(KEY, list(stored), 0))
    with pytest.raises(InputError, match="parts 7"):
        list(client.fetch_parts(KEY, list(stored), 7))
    with pytest.raises(UnknownNamespaceError):
        list(client.fetch_parts("nowhere", list(stored), LAYERS))


def frames(chunk: ChunkKV, parts: int) -> list[Frame]:
    return list(split_parts([chunk], parts))


def chunk(checksum: int | None = None) -> ChunkKV:
    payload = os.urandom(3 * FRAME_BYTES)
    return ChunkKV(5, payload, xxh3(payload) if checksum is None else checksum)


def test_damage_is_found_at_the_last_part():
    parts = read_parts(iter(frames(chunk(checksum=1), 2)), 2)
    assert next(parts).part == 0
    with pytest.raises(ChecksumError) as caught:
        next(parts)
    assert caught.value.chunk_id == 5


def test_a_stream_that_ends_early_or_leaves_a_gap_is_noticed():
    sent = frames(chunk(), 2)
    assert len(sent) == 4
    for short in (sent[:1], sent[:3]):
        with pytest.raises(TruncatedStreamError):
            list(read_parts(iter(short), 2))
    with pytest.raises(TruncatedStreamError):
        list(read_parts(iter(sent[:2]), 2))
    with pytest.raises(DataLossError):
        list(read_parts(iter([*sent[:2], sent[3]]), 2))
    with pytest.raises(DataLossError):
        list(read_parts(iter(sent), 5))


def test_published_documents_come_in_parts_from_where_they_were_found(client, stored):
    cache = PublishedCache(client, "docs")
    # As Python 3.12 and newer look: a method that __getattr__ passes on is none.
    assert inspect.getattr_static(cache, "fetch_parts")
    assert isinstance(cache, PartSource)
    cache.open(NS)
    published = words("pub", 24)
    payload = finite(os.urandom(24 * LAYOUT.token_bytes))
    shared = cache.published_key(KEY)
    client.put(PutRequest(shared, published, (NewChunk(Span(0, 24), "x", True, payload),)))
    found = cache.match(ask(KEY, [words("p16", 16), published])).matches
    ids = [match.donor.chunk_id for match in found]
    assert len(ids) == 2
    got = list(cache.fetch_parts(KEY, [ids[1], ids[0]], LAYERS))
    assert [part.part for part in got] == sorted([*range(LAYERS)] * 2)
    for chunk_id, whole in ((ids[0], stored[ids[0]]), (ids[1], payload)):
        assert b"".join(bytes(p.payload) for p in got if p.chunk_id == chunk_id) == whole


def test_a_cache_beside_published_documents_sends_no_parts_where_the_cache_itself_does_not():
    cache = PublishedCache(LocalCache(1 << 20), "docs")
    assert not isinstance(cache, PartSource)
    assert not hasattr(cache, "fetch_parts")
    cache.close()
