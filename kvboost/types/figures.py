"""Figures of a cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """Figures of one namespace since the cache started; ``hit_tokens`` counts target tokens by tier.

    ``exact_bytes`` is the part of ``stored_bytes`` that the prefix tier may lend: K/V of an ordinary prefill.
    ``index_bytes`` is about what tables and vectors take beside the K/V; they count in the budget too.
    ``non_finite_chunks`` were offered with K/V that are infinite or not a number, and refused.
    """

    namespace: str
    tenant: str
    model: str
    chunks: int
    stored_bytes: int
    vectors: int
    queries: int
    query_tokens: int
    hit_tokens: dict[str, int]
    evicted_chunks: int
    exact_bytes: int = 0
    index_bytes: int = 0
    non_finite_chunks: int = 0


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cache says of itself."""

    version: str
    max_bytes: int
    embedder: str
    max_variants: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Figures of a whole cache. ``stored_bytes`` of K/V and ``index_bytes`` stay within ``max_bytes`` together."""

    max_bytes: int
    stored_bytes: int
    uptime_s: float
    namespaces: tuple[NamespaceStats, ...] = ()
    index_bytes: int = 0
