"""The chunks of one namespace in the order in which they leave: S3-FIFO that takes a sequence from its tail.

S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023): new chunks enter a small
queue; those read at least once before they reach its end move to the main queue, the others leave and are
remembered by name in a ghost queue; a name that comes back from there goes to the main queue at once. So chunks
met once leave before chunks met again, without a lock-heavy recency list. Four choices of ours:

- One read is enough to be promoted: a chunk is put only after a miss, so a read already is a second meeting.
- The ghost remembers content rather than chunk ids, since ids are never reused.
- A chunk whose turn it is stays while another one continues it that was not read either: the end of that chain goes
  in its place, and the rest of the chain is next. The other way about, what is left could not serve the prefix tier.
- What a put may not push out, its own sequence, is passed over, in both queues. So a chat larger than the small queue
  takes from the main one instead of from its own head; a later scan takes the chat first, and the main queue no more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from kvboost.types import ChunkKV

SMALL_SHARE = 0.1
MAX_READS_COUNTED = 3


@dataclass(slots=True)
class _Slot:
    kv: ChunkKV
    nbytes: int
    name: bytes
    reads: int = 0


_Queue = OrderedDict[int, _Slot]


class PayloadStore:
    """Payloads by chunk id, and whose turn it is to leave.

    A reader holds a reference to the immutable payload, so an eviction beside it is safe, and its memory is free
    again when the last reader lets go. Not safe for use from several threads: the namespace's lock guards it.

    Parameters
    ----------
    continued_by
        Returns the ids of the chunks that go on where a chunk ends, with its history.
    """

    def __init__(self, continued_by: Callable[[int], Iterable[int]]) -> None:
        self.used_bytes = 0
        self._continued_by = continued_by
        self._small: _Queue = OrderedDict()
        self._main: _Queue = OrderedDict()
        self._ghost: OrderedDict[bytes, None] = OrderedDict()
        self._small_bytes = 0

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def __contains__(self, chunk_id: int) -> bool:
        return chunk_id in self._small or chunk_id in self._main

    def put(self, kv: ChunkKV, nbytes: int, name: bytes) -> None:
        """Store a payload under its new chunk id; ``nbytes`` is all that the chunk takes, ``name`` its content."""
        slot = _Slot(kv, nbytes, name)
        if name in self._ghost:
            del self._ghost[name]
            self._main[kv.chunk_id] = slot
        else:
            self._small[kv.chunk_id] = slot
            self._small_bytes += nbytes
        self.used_bytes += nbytes

    def get(self, chunk_id: int) -> ChunkKV | None:
        """Return a payload and count the read, or None."""
        slot = self._slot(chunk_id)
        if slot is None:
            return None
        slot.reads = min(slot.reads + 1, MAX_READS_COUNTED)
        return slot.kv

    def peek(self, chunk_id: int) -> ChunkKV:
        """Return the payload of a chunk that is stored, without counting a read."""
        return self._known(chunk_id).kv

    def replace(self, kv: ChunkKV) -> None:
        """Take a copy of a stored chunk for it: its bytes moved."""
        self._known(kv.chunk_id).kv = kv

    def remove(self, chunk_id: int) -> ChunkKV | None:
        """Remove a payload and return it, or None if it is not here."""
        slot = self._small.pop(chunk_id, None)
        if slot is not None:
            self._small_bytes -= slot.nbytes
        else:
            slot = self._main.pop(chunk_id, None)
        if slot is None:
            return None
        self.used_bytes -= slot.nbytes
        return slot.kv

    def evict(self, spare: Container[int] = ()) -> ChunkKV | None:
        """Remove the chunk whose turn it is and return it, or None if all that is left is in ``spare``.

        Ends: every pass takes a read off a chunk, promotes it, or finds one more to spare.
        """
        spared: dict[bool, set[int]] = {True: set(), False: set()}
        while True:
            small = len(spared[True]) < len(self._small)
            main = len(spared[False]) < len(self._main)
            if not small and not main:
                return None
            small = small and (self._small_bytes >= SMALL_SHARE * self.used_bytes or not main)
            queue = self._small if small else self._main
            chunk_id, slot = next(iter(queue.items()))
            if chunk_id in spare:
                queue.move_to_end(chunk_id)
                spared[small].add(chunk_id)
            elif slot.reads:
                self._keep(chunk_id, slot, small)
            else:
                return self._let_go(self._end_of_chain(chunk_id, spare))

    def clear(self) -> None:
        """Forget everything, chunk by chunk, so that other threads run in between."""
        for queue in (self._small, self._main, self._ghost):
            while queue:
                queue.popitem()
        self.used_bytes = self._small_bytes = 0

    def _slot(self, chunk_id: int) -> _Slot | None:
        return self._small.get(chunk_id) or self._main.get(chunk_id)

    def _known(self, chunk_id: int) -> _Slot:
        return self._small[chunk_id] if chunk_id in self._small else self._main[chunk_id]

    def _keep(self, chunk_id: int, slot: _Slot, small: bool) -> None:
        """Give a chunk that was read another round in the main queue."""
        if small:
            del self._small[chunk_id]
            self._small_bytes -= slot.nbytes
            slot.reads = 0
            self._main[chunk_id] = slot
        else:
            slot.reads -= 1
            self._main.move_to_end(chunk_id)

    def _end_of_chain(self, chunk_id: int, spare: Container[int]) -> int:
        """Return the last unread chunk that continues this one; those on the way are next in turn, last first."""
        path = [chunk_id]
        while (follower := self._unread_follower(path[-1], spare)) is not None:
            path.append(follower)
        for each in path[:-1]:
            (self._small if each in self._small else self._main).move_to_end(each, last=False)
        return path[-1]

    def _unread_follower(self, chunk_id: int, spare: Container[int]) -> int | None:
        for each in self._continued_by(chunk_id):
            slot = self._slot(each)
            if slot is not None and not slot.reads and each not in spare:
                return each
        return None

    def _let_go(self, chunk_id: int) -> ChunkKV | None:
        name = self._known(chunk_id).name
        if chunk_id in self._small:
            self._ghost[name] = None
            while len(self._ghost) > max(len(self), 1):
                self._ghost.popitem(last=False)
        return self.remove(chunk_id)
