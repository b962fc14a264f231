"""A cache that reads published documents beside its tenant's own K/V.

Tenants never share K/V. The one exception are documents that were published on purpose: by the runtime service's
warm-up call, which computes their K/V alone, behind no user's prompt. They lie in a namespace of their own, and this
cache reads it; nothing that it stores for a request ever goes there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import groupby
from typing import Any, Self, cast

from kvboost.errors import InputError
from kvboost.protocols import ChunkCache, PartSource
from kvboost.types import (
    CacheInfo,
    CacheStats,
    ChunkKV,
    ChunkPart,
    Match,
    MatchQuery,
    MatchResult,
    Namespace,
    PutReceipt,
    PutRequest,
    Tier,
)

MARK = "published:"
_REMEMBERED_IDS = 1 << 17
_BY_HASH = (Tier.PREFIX, Tier.EXACT)


def check_tenant(tenant: str) -> None:
    """Refuse a tenant that is named like a namespace of published documents.

    Raises
    ------
    InputError
    """
    if tenant.startswith(MARK):
        raise InputError(f"tenant {tenant!r} must not begin with {MARK!r}: such names hold published documents")


class PublishedCache:
    """Passes every call on to ``inner``; look-ups by hash also go to the documents published under ``name``.

    Published documents are found by hash alone: an edited or reworded one is not nominated. It is a
    :class:`~kvboost.protocols.PartSource` where ``inner`` is one.

    Parameters
    ----------
    inner
        The cache itself; closed with this one.
    name
        Whose documents are read: those of runtimes that publish under the same name, for the same model.
    """

    def __new__(cls, inner: ChunkCache, name: str) -> Self:
        """Make one with or without parts."""
        # A class that has the method, since newer Pythons do not see one that __getattr__ passes on.
        made = _PublishedParts if cls is PublishedCache and isinstance(inner, PartSource) else cls
        return cast("Self", object.__new__(made))

    def __init__(self, inner: ChunkCache, name: str) -> None:
        self._inner = inner
        self._tenant = f"{MARK}{name}"
        self._published: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ids: OrderedDict[int, str] = OrderedDict()

    def published_key(self, namespace: str) -> str | None:
        """Return the key of the published documents that are read beside ``namespace``; None before it was opened."""
        return self._published.get(namespace)

    def open(self, namespace: Namespace) -> CacheInfo:
        """Make the namespace known, and that of the published documents."""
        check_tenant(namespace.tenant)
        shared = replace(namespace, tenant=self._tenant)
        info = self._inner.open(namespace)
        self._inner.open(shared)
        self._published[namespace.key] = shared.key
        return info

    def match(self, query: MatchQuery) -> MatchResult:
        """Find donors in both; where two overlap, a lossless one goes first, then the longer one."""
        own = self._inner.match(query)
        key = self._published.get(query.namespace)
        if key is None:
            return own
        shared = self._inner.match(replace(query, namespace=key, threshold=None))
        with self._lock:
            for match in shared.matches:
                self._ids[match.donor.chunk_id] = key
                self._ids.move_to_end(match.donor.chunk_id)
            while len(self._ids) > _REMEMBERED_IDS:
                self._ids.popitem(last=False)
        return replace(own, matches=merged(own.matches, shared.matches))

    def fetch(self, namespace: str, chunk_ids: Sequence[int]) -> Iterator[ChunkKV]:
        """Yield the K/V of the chunks that are still there, from where each was found, in the order asked."""
        for key, ids in groupby(chunk_ids, lambda chunk_id: self._home(namespace, chunk_id)):
            yield from self._inner.fetch(key, list(ids))

    def put(self, request: PutRequest) -> PutReceipt:
        """Offer chunks to the namespace that the request names."""
        return self._inner.put(request)

    def evict(self, namespace: str, chunk_ids: Sequence[int]) -> int:
        """Remove chunks, from where each was found; return how many were there."""
        groups = groupby(chunk_ids, lambda chunk_id: self._home(namespace, chunk_id))
        return sum(self._inner.evict(key, list(ids)) for key, ids in groups)

    def drop(self, namespace: str) -> int:
        """Forget the namespace; published documents stay."""
        return self._inner.drop(namespace)

    def stats(self) -> CacheStats:
        """Return figures of the cache and all its namespaces."""
        return self._inner.stats()

    def close(self) -> None:
        """Close the cache itself."""
        self._inner.close()

    def _home(self, namespace: str, chunk_id: int) -> str:
        with self._lock:
            key = self._ids.get(chunk_id)
        return key if key is not None and key == self._published.get(namespace) else namespace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _PublishedParts(PublishedCache):
    """With an ``inner`` that sends the first layers of all chunks before the last of any."""

    def fetch_parts(self, namespace: str, chunk_ids: Sequence[int], parts: int) -> Iterator[ChunkPart]:
        """Yield the first part of every chunk, from where each was found, then the second of every chunk, and so on."""
        homes: dict[str, list[int]] = {}
        for chunk_id in chunk_ids:
            homes.setdefault(self._home(namespace, chunk_id), []).append(chunk_id)
        assert isinstance(self._inner, PartSource)
        return merge(*(self._inner.fetch_parts(key, ids, parts) for key, ids in homes.items()), key=_number)


def _number(part: ChunkPart) -> int:
    return part.part


def merged(own: Sequence[Match], shared: Sequence[Match]) -> tuple[Match, ...]:
    """Return matches of both that do not overlap, in order of target.

    Hash matches go before nominees, lossless ones before moved ones, longer ones before shorter ones, own ones before
    published ones.
    """
    by_hash = [match for match in (*own, *shared) if match.tier in _BY_HASH]
    by_hash.sort(key=lambda match: (match.tier is not Tier.PREFIX, -len(match.target)))
    kept: list[Match] = []
    taken: set[int] = set()
    for match in by_hash:
        positions = range(match.target.start, match.target.end)
        if taken.isdisjoint(positions):
            kept.append(match)
            taken.update(positions)
    nominees = [
        match
        for match in own
        if match.tier not in _BY_HASH and taken.isdisjoint(range(match.target.start, match.target.end))
    ]
    return tuple(sorted([*kept, *nominees], key=lambda match: match.target.start))
