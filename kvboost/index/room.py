"""One namespace of a cache: its table, its payloads and the order in which they leave, behind a lock of its own."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from kvboost.errors import QuotaError, UnknownNamespaceError
from kvboost.index.budget import Budget
from kvboost.index.offers import Offer
from kvboost.index.payloads import PayloadAllocator
from kvboost.index.store import PayloadStore
from kvboost.index.table import Entry, NamespaceTable, Verdict
from kvboost.types import ChunkKV, Namespace, NamespaceStats


class Room:
    """The chunks of one namespace. Safe to use from several threads, which never hold the locks of two rooms.

    What a chunk takes was taken from ``budget`` when it comes here, and is given back when it leaves.
    """

    def __init__(self, namespace: Namespace, budget: Budget, allocator: PayloadAllocator) -> None:
        self.namespace = namespace
        self.key = namespace.key  # a digest, not to be taken at every chunk
        self._budget = budget
        self._allocator = allocator
        self._lock = threading.Lock()
        self._table = NamespaceTable(namespace)
        self._store = PayloadStore(self._table.continued_by)
        self._regions: dict[str, set[int]] = {}
        self._closed = False

    @contextmanager
    def table(self) -> Iterator[NamespaceTable]:
        """Hold the lock, and with it the table.

        Raises
        ------
        UnknownNamespaceError
            If the namespace was dropped.
        """
        with self._lock:
            if self._closed:
                raise UnknownNamespaceError(f"namespace {self.key!r} was dropped; call open() with it first")
            yield self._table

    def fetch(self, chunk_ids: Sequence[int]) -> list[ChunkKV]:
        """Return the payloads of those chunks that are here, in this order, and count them as read."""
        with self.table():
            found = [self._store.get(chunk_id) for chunk_id in chunk_ids]
        return [kv for kv in found if kv is not None]

    def add(
        self,
        offer: Offer,
        payload: memoryview,
        payload_checksum: int,
        index_bytes: int,
        judge: Callable[[NamespaceTable, Offer], tuple[Verdict, int | None]],
    ) -> tuple[Verdict, int, int | None]:
        """File a chunk whose bytes are here, unless ``judge`` says that it is not wanted any more.

        Returns
        -------
        tuple
            The verdict, the chunk's id, and the id that its vector is wanted under, or None.
        """
        with self.table() as table:
            verdict, replaced = judge(table, offer)
            if verdict in (Verdict.DUPLICATE, Verdict.OVER_VARIANTS):
                return verdict, 0, None
            if replaced is not None:
                self._remove(replaced)
            chunk_id = self._new_id()
            self._store.put(ChunkKV(chunk_id, payload, payload_checksum), offer.nbytes + index_bytes, offer.content)
            region = self._allocator.region_of(payload)
            if region is not None:
                self._regions.setdefault(region, set()).add(chunk_id)
            return verdict, chunk_id, table.add(Entry(offer.donor(chunk_id), offer.content, offer.nbytes, index_bytes))

    def remove(self, chunk_ids: Sequence[int]) -> int:
        """Remove chunks; return how many were here."""
        with self.table():
            return sum(self._remove(chunk_id) for chunk_id in chunk_ids)

    def evict(self, nbytes: int, spare: Container[int] = ()) -> int:
        """Let chunks go whose turn it is, of ``nbytes`` together or a little more; return how many bytes left."""
        freed = 0
        with self._lock:
            while freed < nbytes and not self._closed:
                kv = self._store.evict(spare)
                if kv is None:
                    break
                freed += self._forget(kv)
                self._table.evicted_chunks += 1
        return freed

    def vacate(self, region: str) -> None:
        """Move the chunks out of a piece of memory to where this namespace has room; those that find none leave."""
        with self._lock:
            for chunk_id in [] if self._closed else list(self._regions.get(region, ())):
                kv = self._store.peek(chunk_id)
                source = np.frombuffer(memoryview(kv.payload), dtype=np.uint8)
                try:
                    memory = self._allocator.allocate(self.key, source.nbytes, grow=False)
                except QuotaError:
                    self._remove(chunk_id)
                    self._table.evicted_chunks += 1
                    continue
                memory[:] = source
                payload = memory.data.toreadonly()
                self._store.replace(replace(kv, payload=payload))
                self._leave_region(chunk_id, region)
                moved = self._allocator.region_of(payload)
                if moved is not None:
                    self._regions.setdefault(moved, set()).add(chunk_id)

    def stats(self) -> NamespaceStats:
        """Return this namespace's figures."""
        with self._lock:
            return self._table.stats()

    def close(self) -> int:
        """Forget everything, letting other threads run in between; return how many chunks there were."""
        with self._lock:
            if self._closed:
                return 0
            self._closed = True
            used_bytes = self._store.used_bytes
        # Nobody looks any more: whoever holds the lock next sees that the room is closed.
        self._store.clear()
        self._regions.clear()
        if used_bytes:
            self._budget.give(self, used_bytes)
        return self._table.dissolve()

    def _new_id(self) -> int:
        while True:
            chunk_id = secrets.randbits(63)
            if chunk_id and chunk_id not in self._store:
                return chunk_id

    def _remove(self, chunk_id: int) -> bool:
        """Remove a chunk; return whether it was here."""
        kv = self._store.remove(chunk_id)
        if kv is None:
            return False
        self._forget(kv)
        return True

    def _forget(self, kv: ChunkKV) -> int:
        """Give up all else of a chunk whose payload left; return the bytes that it took."""
        region = self._allocator.region_of(memoryview(kv.payload))
        if region is not None:
            self._leave_region(kv.chunk_id, region)
        entry = self._table.remove(kv.chunk_id)
        nbytes = entry.nbytes + entry.index_bytes
        self._budget.give(self, nbytes)
        return nbytes

    def _leave_region(self, chunk_id: int, region: str) -> None:
        inside = self._regions[region]
        inside.discard(chunk_id)
        if not inside:
            del self._regions[region]
