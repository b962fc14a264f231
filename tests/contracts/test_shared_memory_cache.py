"""The gRPC client keeps the contract when it reads K/V in the server's shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvboost.client import CacheClient
from kvboost.index import LocalCache
from kvboost.index.arena import Arena
from kvboost.protocols import ChunkCache
from kvboost.services.cache_server import SERVICE_NAME, CacheServicer
from kvboost.services.cache_server.leases import Leases
from kvboost.services.grpc_server import start_server
from kvboost.types import CacheInfo, Handover
from kvboost.wire.address import parse_address
from tests.contracts.chunk_cache import KEY, A, B, ChunkCacheContract, MakeCache
from tests.contracts.chunks import ask, offer


class _SharedMemoryContract(ChunkCacheContract):
    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        raise NotImplementedError

    @pytest.fixture
    def make_cache(self, address: str, tmp_path: Path) -> Iterator[MakeCache]:
        with ExitStack() as stack:

            def make(max_bytes: int = 1 << 20, **settings: object) -> CacheClient:
                arena = Arena(max_bytes, tmp_path)
                local = LocalCache(max_bytes, allocator=arena, **settings)  # type: ignore[arg-type]
                stack.callback(local.close)
                leases = Leases(arena, max_bytes, max_bytes)
                servicer = CacheServicer(local, CacheInfo("test", max_bytes, "", 1), leases)
                server = start_server(servicer.register, [SERVICE_NAME], [parse_address(address)])
                stack.callback(server.stop, 0)
                client = CacheClient(str(server.addresses[0]))
                stack.callback(client.close)
                return client

            yield make

    def test_this_suite_reads_shared_memory(self, cache: ChunkCache) -> None:
        assert isinstance(cache, CacheClient)
        assert cache.handover is Handover.SHARED_MEMORY
        cache.put(offer(KEY, [A, B]))
        matches = cache.match(ask(KEY, [A, B])).matches
        chunks = list(cache.fetch(KEY, [m.donor.chunk_id for m in matches]))
        assert [kv.handover for kv in chunks] == [Handover.SHARED_MEMORY] * 2
        assert cache.handover is Handover.SHARED_MEMORY


class TestSharedMemoryOverUnixSocket(_SharedMemoryContract):
    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return f"unix:{tmp_path}/cache.sock"


class TestSharedMemoryOverLoopback(_SharedMemoryContract):
    @pytest.fixture
    def address(self) -> str:
        return "127.0.0.1:0"
