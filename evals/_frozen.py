"""A cache that keeps nothing new while prompts are measured: one policy must not warm the next one's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kvboost.protocols import ChunkCache
from kvboost.runtime.cost.meter import path_of
from kvboost.types import (
    CacheInfo,
    CacheStats,
    ChunkKV,
    Handover,
    MatchQuery,
    MatchResult,
    Namespace,
    PutReceipt,
    PutRequest,
)


class FrozenCache:
    """A :class:`~kvboost.protocols.ChunkCache` that drops every put outside :meth:`thawed`."""

    def __init__(self, cache: ChunkCache) -> None:
        self._cache = cache
        self._keeps = False

    @contextmanager
    def thawed(self) -> Iterator[None]:
        """Keep what is put meanwhile."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False

    def __getattr__(self, name: str) -> Any:
        """Pass on what the cache behind has beside the protocol, so that the runtime takes the same paths."""
        return getattr(self._cache, name)

    @property
    def handover(self) -> Handover:
        """As the cache behind."""
        return path_of(self._cache)

    def put(self, request: PutRequest) -> PutReceipt:
        """Pass the chunks on, or drop them."""
        return self._cache.put(request) if self._keeps else PutReceipt()

    def open(self, namespace: Namespace) -> CacheInfo:
        """As the cache behind."""
        return self._cache.open(namespace)

    def match(self, query: MatchQuery) -> MatchResult:
        """As the cache behind."""
        return self._cache.match(query)

    def fetch(self, namespace: str, chunk_ids: Sequence[int]) -> Iterator[ChunkKV]:
        """As the cache behind."""
        return self._cache.fetch(namespace, chunk_ids)

    def evict(self, namespace: str, chunk_ids: Sequence[int]) -> int:
        """As the cache behind."""
        return self._cache.evict(namespace, chunk_ids)

    def drop(self, namespace: str) -> int:
        """As the cache behind."""
        return self._cache.drop(namespace)

    def stats(self) -> CacheStats:
        """As the cache behind."""
        return self._cache.stats()

    def close(self) -> None:
        """As the cache behind."""
        self._cache.close()
