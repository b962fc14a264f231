"""The cache in this process keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvboost.index import LocalCache
from tests.contracts.chunk_cache import ChunkCacheContract, MakeCache


class TestLocalCache(ChunkCacheContract):
    @pytest.fixture
    def make_cache(self) -> Iterator[MakeCache]:
        made: list[LocalCache] = []

        def make(**settings: object) -> LocalCache:
            made.append(LocalCache(**settings))  # type: ignore[arg-type]
            return made[-1]

        yield make
        for cache in made:
            cache.close()
