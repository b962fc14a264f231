"""The chunk cache in this process: a room for each namespace, one budget, one memory, one embedder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from kvboost import __version__
from kvboost.errors import (
    CacheUnavailableError,
    InputError,
    LayoutMismatchError,
    UnknownNamespaceError,
)
from kvboost.index.budget import Budget
from kvboost.index.judging import judged, variants_of
from kvboost.index.lookup import HashMatches, Lookup
from kvboost.index.nominate import Nominator
from kvboost.index.payloads import PayloadAllocator, ProcessMemory
from kvboost.index.putting import Putting, Stocks
from kvboost.index.room import Room
from kvboost.index.table import NamespaceTable
from kvboost.index.vacate import Vacating
from kvboost.index.worker import EmbeddingReport
from kvboost.protocols import Embedder
from kvboost.types import (
    CacheInfo,
    CacheStats,
    ChunkKV,
    ChunkVerdict,
    Match,
    MatchQuery,
    MatchResult,
    Namespace,
    PutReceipt,
    PutRequest,
    Tier,
)


class LocalCache:
    """A :class:`~kvboost.protocols.ChunkCache` in this process; also the core of the cache server.

    Safe to use from several threads. Every namespace has a lock of its own, held for table work only: copying,
    checksums and embedding are done outside it.

    Parameters
    ----------
    max_bytes
        Budget over all namespaces for K/V and about what tables and vectors take. Payloads that left the cache while
        a reader still holds them come on top.
    embedder
        Turns chunk texts into vectors; None leaves the similar look-up out.
    max_variants
        How many histories one and the same chunk content is kept under; more for chunks of a few tokens, and for
        what is read under its own history alone.
    embed_batch
        Chunks per call of the embedder in the background.
    max_waiting_embeddings
        Chunks that may wait for it; more are stored without a vector, and counted.
    allocator
        Where payloads lie; None for ordinary memory. It is closed with the cache.
    """

    def __init__(
        self,
        max_bytes: int = 2 << 30,
        embedder: Embedder | None = None,
        max_variants: int = 2,
        *,
        embed_batch: int = 16,
        max_waiting_embeddings: int = 8192,
        allocator: PayloadAllocator | None = None,
    ) -> None:
        for name, value in (
            ("max_bytes", max_bytes),
            ("max_variants", max_variants),
            ("embed_batch", embed_batch),
            ("max_waiting_embeddings", max_waiting_embeddings),
        ):
            if value < 1:
                raise InputError(f"{name} {value} must be at least 1")
        self._embedder = embedder
        self._started = time.monotonic()
        self._lock = threading.Lock()  # of the dictionary; a room has its own
        self._rooms: dict[str, Room] = {}
        self._budget = Budget(max_bytes)
        self._allocator = allocator or ProcessMemory()
        self._nominator = Nominator(embedder, embed_batch, max_waiting_embeddings)
        vacating = Vacating(self._allocator, self._rooms)
        self._stocks = Stocks(self._budget, self._allocator, self._nominator, max_variants, vacating)
        self._closed = False

    def open(self, namespace: Namespace) -> CacheInfo:
        with self._lock:
            self._check_open()
            known = self._rooms.get(namespace.key)
            if known is None:
                self._rooms[namespace.key] = Room(namespace, self._budget, self._allocator)
            elif known.namespace.layout != namespace.layout:
                raise LayoutMismatchError(
                    f"namespace {namespace.key} is known with {known.namespace.layout}, not {namespace.layout}; "
                    "drop it or fix the layout"
                )
            embedder = self._embedder.name if self._embedder else ""
        return CacheInfo(__version__, self._budget.max_bytes, embedder, self._stocks.max_variants)

    def match(self, query: MatchQuery) -> MatchResult:
        room = self._used(query.namespace)
        with room.table() as table:
            lookup = Lookup(table, query)
            found = lookup.by_hash()
            vectors = table.vectors if query.threshold is not None else None
            gaps = lookup.promising(found.gaps) if vectors is not None else []
        near = self._nominator.find(vectors, query, gaps, lookup.ranks)
        with room.table() as table:
            nominees = lookup.nominated(near, found.matches)
            _count(table, query, found, nominees)
        matches = sorted(found.matches + nominees, key=lambda m: m.target.start)
        return MatchResult(tuple(matches), len(near), len(found.gaps) - len(near) if vectors is not None else 0)

    def fetch(self, namespace: str, chunk_ids: Sequence[int]) -> Iterator[ChunkKV]:
        return iter(self._used(namespace).fetch(chunk_ids))

    def put(self, request: PutRequest) -> PutReceipt:
        return Putting(self._used(request.namespace), request, self._stocks).run()

    def judge(self, request: PutRequest) -> tuple[ChunkVerdict, ...]:
        """As of :class:`~kvboost.protocols.PutJudge`."""
        with self._room(request.namespace).table() as table:
            return judged(table, request, variants_of(request, self._stocks.max_variants))

    def evict(self, namespace: str, chunk_ids: Sequence[int]) -> int:
        return self._room(namespace).remove(chunk_ids)

    def drop(self, namespace: str) -> int:
        with self._lock:
            self._check_open()
            room = self._rooms.pop(namespace, None)
        dropped = room.close() if room is not None else 0
        self._allocator.forget(namespace)
        self._nominator.forget(namespace)
        return dropped

    def stats(self) -> CacheStats:
        with self._lock:
            self._check_open()
            rooms = list(self._rooms.values())
        namespaces = tuple(room.stats() for room in rooms)
        return CacheStats(
            max_bytes=self._budget.max_bytes,
            stored_bytes=sum(each.stored_bytes for each in namespaces),
            uptime_s=time.monotonic() - self._started,
            namespaces=namespaces,
            index_bytes=sum(each.index_bytes for each in namespaces),
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            rooms = list(self._rooms.values())
            self._rooms.clear()
        for room in rooms:
            room.close()
        self._nominator.close()
        self._allocator.close()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until the chunks stored so far are embedded; return False if ``timeout_s`` ran out first."""
        return self._nominator.flush(timeout_s)

    @property
    def embedding(self) -> EmbeddingReport:
        """What became of the texts of stored chunks."""
        return self._nominator.report()

    @property
    def failed_lookups(self) -> int:
        """Queries whose texts could not be embedded; they were answered by hash alone."""
        return self._nominator.failed_lookups

    def _check_open(self) -> None:
        if self._closed:
            raise CacheUnavailableError("the cache is closed; make a new one")

    def _room(self, namespace: str) -> Room:
        with self._lock:
            self._check_open()
            room = self._rooms.get(namespace)
        if room is None:
            raise UnknownNamespaceError(f"namespace {namespace!r} is unknown; call open() with it first")
        return room

    def _used(self, namespace: str) -> Room:
        """Return a room that somebody reads or fills."""
        room = self._room(namespace)
        self._budget.touch(room)
        return room


def _count(table: NamespaceTable, query: MatchQuery, found: HashMatches, nominees: list[Match]) -> None:
    """Add a query to the namespace's figures; a chunk with several nominees counts once."""
    table.queries += 1
    table.query_tokens += len(query.token_ids)
    for match in found.matches:
        table.hit_tokens[match.tier.value] += len(match.target)
    for target in {match.target for match in nominees}:
        table.hit_tokens[Tier.SIMILAR.value] += len(target)
