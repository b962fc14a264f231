"""A cache that reads published documents keeps the contract of a cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvboost.index import LocalCache
from kvboost.published import PublishedCache
from tests.contracts.chunk_cache import ChunkCacheContract, MakeCache


class TestPublishedCache(ChunkCacheContract):
    @pytest.fixture
    def make_cache(self) -> Iterator[MakeCache]:
        made: list[PublishedCache] = []

        def make(**settings: object) -> PublishedCache:
            made.append(PublishedCache(LocalCache(**settings), "docs"))  # type: ignore[arg-type]
            return made[-1]

        yield make
        for cache in made:
            cache.close()
