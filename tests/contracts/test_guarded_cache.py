"""A cache behind a circuit breaker keeps the contract of a cache, alone and under published documents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvboost.circuit_breaker import CircuitBreaker, guarded
from kvboost.index import LocalCache
from kvboost.protocols import ChunkCache
from kvboost.published import PublishedCache
from tests.contracts.chunk_cache import ChunkCacheContract, MakeCache


class TestGuardedCache(ChunkCacheContract):
    @pytest.fixture
    def make_cache(self) -> Iterator[MakeCache]:
        made: list[ChunkCache] = []

        def make(**settings: object) -> ChunkCache:
            made.append(self.wrapped(guarded(LocalCache(**settings))))  # type: ignore[arg-type]
            return made[-1]

        yield make
        for cache in made:
            cache.close()

    def wrapped(self, cache: CircuitBreaker) -> ChunkCache:
        return cache


class TestGuardedAndPublished(TestGuardedCache):
    def wrapped(self, cache: CircuitBreaker) -> ChunkCache:
        return PublishedCache(cache, "docs")
