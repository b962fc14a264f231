"""The chunk cache in this process: tables, payloads and vectors behind one lock."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence

from kvboost import __version__
from kvboost.checksum import checksum
from kvboost.errors import (
    CacheUnavailableError,
    InputError,
    LayoutMismatchError,
    UnknownNamespaceError,
)
from kvboost.index.lookup import HashMatches, Lookup
from kvboost.index.nominate import Nominator
from kvboost.index.offers import Offer, check_offers
from kvboost.index.payloads import PayloadAllocator, ProcessMemory, copied_in
from kvboost.index.store import PayloadStore
from kvboost.index.table import Entry, NamespaceTable, Verdict
from kvboost.index.worker import EmbeddingReport
from kvboost.protocols import Embedder
from kvboost.types import (
    CacheInfo,
    CacheStats,
    ChunkKV,
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

    Safe to use from several threads. The lock is held for table work only: copying, checksums and embedding are
    done outside it.

    Parameters
    ----------
    max_bytes
        Budget for K/V payloads over all namespaces. Tables and vectors come on top, and so do payloads that left
        the cache while a reader still holds them.
    embedder
        Turns chunk texts into vectors; None leaves the similar look-up out.
    max_variants
        How many histories one and the same chunk content is kept under; more for chunks of a few tokens.
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
        self._max_variants = max_variants
        self._embedder = embedder
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._tables: dict[str, NamespaceTable] = {}
        self._owners: dict[int, NamespaceTable] = {}
        self._store = PayloadStore(max_bytes)
        self._allocator = allocator or ProcessMemory()
        self._nominator = Nominator(embedder, self._lock, embed_batch, max_waiting_embeddings)
        self._closed = False

    def open(self, namespace: Namespace) -> CacheInfo:
        with self._lock:
            self._check_open()
            known = self._tables.get(namespace.key)
            if known is None:
                self._tables[namespace.key] = NamespaceTable(namespace)
            elif known.namespace.layout != namespace.layout:
                raise LayoutMismatchError(
                    f"namespace {namespace.key} is known with {known.namespace.layout}, not {namespace.layout}; "
                    "drop it or fix the layout"
                )
            embedder = self._embedder
        return CacheInfo(__version__, self._store.max_bytes, embedder.name if embedder else "", self._max_variants)

    def match(self, query: MatchQuery) -> MatchResult:
        with self._lock:
            table = self._table(query.namespace)
        lookup = Lookup(table, query)
        with self._lock:
            found = lookup.by_hash()
            similar = query.threshold is not None and table.vectors is not None
            gaps = lookup.promising(found.gaps) if similar else []
        near = self._nominator.find(table, query, gaps, lookup.ranks)
        with self._lock:
            nominees = lookup.nominated(near, found.matches)
            _count(table, query, found, nominees)
        matches = sorted(found.matches + nominees, key=lambda m: m.target.start)
        return MatchResult(tuple(matches), len(near), len(found.gaps) - len(near) if similar else 0)

    def fetch(self, namespace: str, chunk_ids: Sequence[int]) -> Iterator[ChunkKV]:
        with self._lock:
            table = self._table(namespace)
            kvs = [self._store.get(i) for i in chunk_ids if i in table]
        return (kv for kv in kvs if kv is not None)

    def put(self, request: PutRequest) -> PutReceipt:
        with self._lock:
            table = self._table(request.namespace)
        counts = dict.fromkeys(("stored", "duplicate", "over_variants", "too_large"), 0)
        # Every chunk is checked before the first is stored.
        for offer in check_offers(table.namespace, request):
            counts[self._put_one(request.namespace, offer)] += 1
        return PutReceipt(**counts)

    def evict(self, namespace: str, chunk_ids: Sequence[int]) -> int:
        with self._lock:
            table = self._table(namespace)
            return sum(self._remove(i) for i in chunk_ids if i in table)

    def drop(self, namespace: str) -> int:
        with self._lock:
            self._check_open()
            table = self._tables.pop(namespace, None)
            dropped = sum(self._remove(i) for i in table.chunk_ids) if table is not None else 0
        self._allocator.forget(namespace)
        self._nominator.forget(namespace)
        return dropped

    def stats(self) -> CacheStats:
        with self._lock:
            self._check_open()
            return CacheStats(
                max_bytes=self._store.max_bytes,
                stored_bytes=self._store.used_bytes,
                uptime_s=time.monotonic() - self._started,
                namespaces=tuple(table.stats() for table in self._tables.values()),
            )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._tables.clear()
            self._owners.clear()
            self._store.clear()
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

    def _table(self, namespace: str) -> NamespaceTable:
        self._check_open()
        table = self._tables.get(namespace)
        if table is None:
            raise UnknownNamespaceError(f"namespace {namespace!r} is unknown; call open() with it first")
        return table

    def _put_one(self, namespace: str, offer: Offer) -> str:
        """Store one chunk, or name why not. The copy is made between two looks at the table, outside the lock."""
        if not self._store.fits(offer.nbytes):
            return "too_large"
        with self._lock:
            verdict, _ = self._judge(self._table(namespace), offer)
        if verdict in (Verdict.DUPLICATE, Verdict.OVER_VARIANTS):
            return verdict
        payload = copied_in(self._allocator, namespace, offer.chunk.payload, self._evict_one)
        payload_checksum = checksum(payload)
        with self._lock:
            table = self._table(namespace)
            verdict, replaced = self._judge(table, offer)
            if verdict in (Verdict.DUPLICATE, Verdict.OVER_VARIANTS):
                return verdict
            if replaced is not None:
                self._remove(replaced)
            chunk_id = self._new_id()
            for evicted in self._store.put(
                ChunkKV(chunk_id, payload, payload_checksum), offer.nbytes, (namespace, offer.content)
            ):
                self._forget_evicted(evicted)
            self._owners[chunk_id] = table
            vector_id = table.add(Entry(offer.donor(chunk_id), offer.content, offer.nbytes))
        if vector_id is not None:
            self._nominator.submit(table, vector_id, offer.chunk.text)
        return "stored"

    def _evict_one(self) -> bool:
        """Make room in the memory that payloads lie in; return False if nothing is left to evict."""
        with self._lock:
            evicted = self._store.evict()
            if evicted is not None:
                self._forget_evicted(evicted)
        return evicted is not None

    def _judge(self, table: NamespaceTable, offer: Offer) -> tuple[Verdict, int | None]:
        history = (offer.parent_hash, offer.prefix_hash)
        return table.judge(history, offer.content, len(offer.token_ids), offer.chunk.exact, self._max_variants)

    def _new_id(self) -> int:
        while True:
            chunk_id = secrets.randbits(63)
            if chunk_id and chunk_id not in self._owners:
                return chunk_id

    def _remove(self, chunk_id: int) -> bool:
        if not self._store.remove(chunk_id):
            return False
        self._forget(chunk_id)
        return True

    def _forget_evicted(self, chunk_id: int) -> None:
        self._owners[chunk_id].evicted_chunks += 1
        self._forget(chunk_id)

    def _forget(self, chunk_id: int) -> None:
        self._owners.pop(chunk_id).remove(chunk_id)


def _count(table: NamespaceTable, query: MatchQuery, found: HashMatches, nominees: list[Match]) -> None:
    """Add a query to the namespace's figures; a chunk with several nominees counts once."""
    table.queries += 1
    table.query_tokens += len(query.token_ids)
    for match in found.matches:
        table.hit_tokens[match.tier.value] += len(match.target)
    for target in {match.target for match in nominees}:
        table.hit_tokens[Tier.SIMILAR.value] += len(target)
