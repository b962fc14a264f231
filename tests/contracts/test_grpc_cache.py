"""The gRPC client of a served cache keeps the contract, on a unix socket and on TCP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvboost.client import CacheClient
from kvboost.index import LocalCache
from kvboost.services.cache_server import SERVICE_NAME, CacheServicer
from kvboost.services.grpc_server import start_server
from kvboost.types import CacheInfo
from kvboost.wire.address import parse_address
from tests.contracts.chunk_cache import ChunkCacheContract, MakeCache


class _GrpcCacheContract(ChunkCacheContract):
    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        raise NotImplementedError

    @pytest.fixture
    def make_cache(self, address: str) -> Iterator[MakeCache]:
        with ExitStack() as stack:

            def make(**settings: object) -> CacheClient:
                local = LocalCache(**settings)  # type: ignore[arg-type]
                stack.callback(local.close)
                servicer = CacheServicer(local, CacheInfo("test", local.stats().max_bytes, "", 1))
                server = start_server(servicer.register, [SERVICE_NAME], [parse_address(address)])
                stack.callback(server.stop, 0)
                client = CacheClient(str(server.addresses[0]))
                stack.callback(client.close)
                return client

            yield make


class TestUnixSocket(_GrpcCacheContract):
    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return f"unix:{tmp_path}/cache.sock"


class TestTcp(_GrpcCacheContract):
    @pytest.fixture
    def address(self) -> str:
        return "127.0.0.1:0"
