"""Chunk payloads under a byte budget, evicted by S3-FIFO.

S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023): new chunks enter a small
queue; those read at least once before they reach its end move to the main queue, the others leave and are
remembered by name in a ghost queue; a name that comes back from there goes to the main queue at once. So chunks
met once leave before chunks met again, without a lock-heavy recency list. Two choices of ours: one read is
enough to be promoted (a chunk is put only after a miss, so a read already is a second meeting), and the ghost
remembers content rather than chunk ids, since ids are never reused.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kvboost.errors import QuotaError
from kvboost.types import ChunkKV

SMALL_SHARE = 0.1
MAX_READS_COUNTED = 3

GhostKey = tuple[str, bytes]


@dataclass(slots=True)
class _Slot:
    kv: ChunkKV
    nbytes: int
    ghost_key: GhostKey
    reads: int = 0


class PayloadStore:
    """Payloads by chunk id, never more than ``max_bytes`` of them.

    Payloads only are counted: tables and vectors come on top. A reader holds a reference to the immutable
    payload, so an eviction beside it is safe, and its memory is free again when the last reader lets go. Not safe
    for use from several threads: the cache's lock guards it.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._small: OrderedDict[int, _Slot] = OrderedDict()
        self._main: OrderedDict[int, _Slot] = OrderedDict()
        self._ghost: OrderedDict[GhostKey, None] = OrderedDict()
        self._small_bytes = 0

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def __contains__(self, chunk_id: int) -> bool:
        return chunk_id in self._small or chunk_id in self._main

    def fits(self, nbytes: int) -> bool:
        """Return whether a payload of this size could be stored at all."""
        return nbytes <= self.max_bytes

    def put(self, kv: ChunkKV, nbytes: int, ghost_key: GhostKey) -> list[int]:
        """Store a payload under its new chunk id; return the ids of the chunks that left for it.

        Raises
        ------
        QuotaError
            If the payload is larger than the whole budget; nothing leaves then.
        """
        if not self.fits(nbytes):
            raise QuotaError(f"payload of {nbytes} bytes is larger than max_bytes {self.max_bytes}; raise the budget")
        evicted = []
        while self.used_bytes + nbytes > self.max_bytes:
            evicted.append(self._evict_one())
        slot = _Slot(kv, nbytes, ghost_key)
        if ghost_key in self._ghost:
            del self._ghost[ghost_key]
            self._main[kv.chunk_id] = slot
        else:
            self._small[kv.chunk_id] = slot
            self._small_bytes += nbytes
        self.used_bytes += nbytes
        return evicted

    def get(self, chunk_id: int) -> ChunkKV | None:
        """Return a payload and count the read, or None."""
        slot = self._small.get(chunk_id) or self._main.get(chunk_id)
        if slot is None:
            return None
        slot.reads = min(slot.reads + 1, MAX_READS_COUNTED)
        return slot.kv

    def remove(self, chunk_id: int) -> bool:
        """Remove a payload; return whether it was there."""
        slot = self._small.pop(chunk_id, None)
        if slot is not None:
            self._small_bytes -= slot.nbytes
        else:
            slot = self._main.pop(chunk_id, None)
        if slot is None:
            return False
        self.used_bytes -= slot.nbytes
        return True

    def evict(self) -> int | None:
        """Remove the chunk whose turn it is; return its id, or None if the store is empty."""
        return self._evict_one() if len(self) else None

    def clear(self) -> None:
        """Forget everything."""
        for queue in (self._small, self._main, self._ghost):
            queue.clear()
        self.used_bytes = self._small_bytes = 0

    def _evict_one(self) -> int:
        """Remove the chunk whose turn it is; return its id. Ends: every pass takes a read off some chunk."""
        while True:
            from_small = self._small and (self._small_bytes >= SMALL_SHARE * self.max_bytes or not self._main)
            chunk_id = self._from_small() if from_small else self._from_main()
            if chunk_id is not None:
                return chunk_id

    def _from_small(self) -> int | None:
        chunk_id, slot = self._small.popitem(last=False)
        self._small_bytes -= slot.nbytes
        if slot.reads:
            slot.reads = 0
            self._main[chunk_id] = slot
            return None
        self.used_bytes -= slot.nbytes
        self._ghost[slot.ghost_key] = None
        while len(self._ghost) > max(len(self), 1):
            self._ghost.popitem(last=False)
        return chunk_id

    def _from_main(self) -> int | None:
        chunk_id, slot = self._main.popitem(last=False)
        if slot.reads:
            slot.reads -= 1
            self._main[chunk_id] = slot
            return None
        self.used_bytes -= slot.nbytes
        return chunk_id
