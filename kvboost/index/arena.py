"""Payloads in shared memory: plain files, mapped here to write and by clients of the same host to read.

Every namespace has files (segments) of its own, since a mapping shows all that is in it. A segment's space is really
allocated when it is made and never truncated or punched, so reading it cannot raise SIGBUS, whatever becomes of this
process. So only a whole segment can go from one namespace to another: they are small, and half empty ones are closed
for the cache to clear.
"""

from __future__ import annotations

import errno
import os
import secrets
import struct
import threading
import weakref
from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvboost.errors import CacheUnavailableError, QuotaError
from kvboost.index.arena_dir import ArenaDirectory
from kvboost.index.payloads import Bytes, Region
from kvboost.index.segments import Segment, Shelf, sizes_to_try, usual_size
from kvboost.index.space import FreeSpace
from kvboost.mapping import map_shared

ALIGN = 64
HEADER_BYTES = 64
_GENERATION = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a payload lies.

    Attributes
    ----------
    segment
        Name of the file.
    offset
        First byte of the payload, a multiple of 64.
    generation
        Unique for this arena. Stands as a little-endian 64-bit number 64 bytes before the payload for as long as the
        payload does; a reader that finds another one there has read bytes of somebody else.
    """

    segment: str
    offset: int
    nbytes: int
    generation: int
    namespace: str


@dataclass(frozen=True, slots=True)
class _Freed:
    shelf: Shelf
    segment: Segment
    start: int
    nbytes: int


class Arena:
    """A :class:`~kvboost.index.payloads.PayloadAllocator` in files of shared memory.

    A block is free again when the last buffer over it in this process is gone: the store's, a stream's that is being
    sent, or a lease's (which is how a client pins what it reads).

    Parameters
    ----------
    max_bytes
        Payload bytes that the store may hold. Files come to at most an eighth more, and 4 MiB: for rounding, for
        segments that are not full, and for payloads that left the store while somebody reads them.
    base
        As in :class:`~kvboost.index.arena_dir.ArenaDirectory`.

    Raises
    ------
    ConfigError
        If the directory cannot be made.
    """

    def __init__(self, max_bytes: int, base: Path | None = None) -> None:
        self.capacity_bytes = max_bytes + max_bytes // 8 + (4 << 20)
        self._segment_bytes = usual_size(self.capacity_bytes)
        self.directory = ArenaDirectory(base, self.capacity_bytes)
        self.reserved_bytes = 0
        self._lock = threading.Lock()
        self._shelves: dict[str, Shelf] = {}
        self._returned = 0
        self._live: dict[int, Extent] = {}
        self._generation = secrets.randbits(32)
        # Filled by finalizers, which may run inside any other call of this thread: they must take no lock.
        self._freed: deque[_Freed] = deque()
        self._closed = False

    def allocate(self, namespace: str, nbytes: int, grow: bool = True) -> Bytes:
        """Return ``nbytes`` of the namespace's segments.

        Raises
        ------
        QuotaError
            If there is no room now, in the arena or its file system.
        CacheUnavailableError
            If the arena is closed, or the system gives no file or mapping for another reason: evicting is no help.
        """
        needed = HEADER_BYTES + -(-nbytes // ALIGN) * ALIGN
        with self._lock:
            if self._closed:
                raise CacheUnavailableError("the arena is closed; make a new one")
            self._collect()
            shelf = self._shelves.setdefault(namespace, Shelf(namespace))
            found = shelf.take(needed)
            if found is None and grow and self._grow(shelf, needed):
                found = shelf.take(needed)
            if found is None:
                raise QuotaError(
                    f"payload of {nbytes} bytes finds no room in an arena of {self.capacity_bytes}, "
                    f"{self.reserved_bytes} of them in segments; evict chunks, or raise max_bytes"
                )
            segment, start = found
            return self._block(shelf, segment, start, needed, nbytes)

    def block_of(self, payload: memoryview) -> Extent | None:
        """Return where a payload lies, or None if it is not of this arena. ``payload`` must stay alive meanwhile."""
        return self._live.get(id(payload.obj))

    def holds(self, namespace: str, payload: memoryview) -> bool:
        """Return whether the whole of ``payload`` is a block of this namespace."""
        block = self.block_of(payload)
        return block is not None and block.namespace == namespace and block.nbytes == payload.nbytes

    def region_of(self, payload: memoryview) -> str | None:
        """Return the name of the segment that a payload lies in."""
        block = self.block_of(payload)
        return block.segment if block is not None else None

    def close_sparsest(self, namespace: str, tried: Container[str]) -> Region | None:
        """Give out nothing more of the segment not in ``tried`` that holds least for its size, and name it.

        The segment that ``namespace`` fills at present is half empty for a good reason, so its own stand back.
        """
        with self._lock:
            self._collect()
            found = [(s, h) for h in self._shelves.values() for s in h.segments if s.name not in tried]
            if not found:
                return None
            segment, shelf = min(found, key=lambda each: each[0].share_used + 0.5 * (each[1].namespace == namespace))
            segment.closed = True
            if segment.space.is_empty:
                self._remove(shelf, segment)
            return Region(segment.name, shelf.namespace, segment.space.size)

    def lingers(self, region: str) -> bool:
        """Return whether a segment is here still."""
        with self._lock:
            self._collect()
            return any(segment.name == region for shelf in self._shelves.values() for segment in shelf.segments)

    @property
    def returned(self) -> int:
        """How many blocks came back so far."""
        with self._lock:
            self._collect()
            return self._returned

    def forget(self, namespace: str) -> None:
        """Remove the namespace's segments, each as soon as it is empty."""
        with self._lock:
            shelf = self._shelves.pop(namespace, None)
            if shelf is not None:
                shelf.forgotten = True
                self._collect()
                for segment in shelf.empty():
                    self._remove(shelf, segment)

    def close(self) -> None:
        """Remove the files. Payloads that somebody still reads stay valid."""
        with self._lock:
            self._closed = True
            self._shelves.clear()
        self.directory.close()

    def _block(self, shelf: Shelf, segment: Segment, start: int, needed: int, nbytes: int) -> Bytes:
        self._generation += 1
        _GENERATION.pack_into(segment.memory, start, self._generation)
        offset = start + HEADER_BYTES
        # Not a slice of one array over the segment: numpy would make views hold that one instead of this.
        array = np.frombuffer(segment.memory, np.uint8, nbytes, offset)
        key = id(array)
        self._live[key] = Extent(segment.name, offset, nbytes, self._generation, shelf.namespace)
        freed = _Freed(shelf, segment, start, needed)
        weakref.finalize(array, _let_go, self._live, key, self._freed, freed).atexit = False
        return array

    def _grow(self, shelf: Shelf, needed: int) -> bool:
        """Add a segment to a shelf; return False if there is no room."""
        for size in sizes_to_try(shelf, needed, self._segment_bytes, self.capacity_bytes):
            if self.reserved_bytes + size > self.capacity_bytes:
                self._release_empty()
            if self.reserved_bytes + size <= self.capacity_bytes:
                segment = self._create(shelf.namespace, size)
                if segment is not None:
                    shelf.segments.append(segment)
                    return True
        return False

    def _create(self, namespace: str, size: int) -> Segment | None:
        # Never used again, so that an old name cannot show new bytes.
        name = f"{namespace}-{secrets.token_hex(8)}.kv"
        try:
            file = self.directory.create(name, size)
            try:
                memory = map_shared(file, size)
            except OSError:
                self.directory.unlink(name)
                raise
            finally:
                os.close(file)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return None  # somebody else fills the file system
            raise CacheUnavailableError(
                f"the arena cannot make a segment of {size} bytes: {error.strerror}; raise the system's limit"
            ) from error
        self.reserved_bytes += size
        return Segment(name, memory, FreeSpace(size))

    def _collect(self) -> None:
        """Take back what finalizers left. A shelf keeps one empty segment of the usual size, for the next put."""
        while self._freed:
            freed = self._freed.popleft()
            shelf, segment = freed.shelf, freed.segment
            _GENERATION.pack_into(segment.memory, freed.start, 0)
            segment.space.give(freed.start, freed.nbytes)
            self._returned += 1
            if segment.space.is_empty and segment in shelf.segments:
                spare = segment.space.size == self._segment_bytes and len(shelf.empty()) == 1 and not segment.closed
                if shelf.forgotten or not spare:
                    self._remove(shelf, segment)

    def _release_empty(self) -> None:
        for shelf in self._shelves.values():
            for segment in shelf.empty():
                self._remove(shelf, segment)

    def _remove(self, shelf: Shelf, segment: Segment) -> None:
        """Give a segment back; its memory goes when the last mapping does."""
        shelf.segments.remove(segment)
        self.reserved_bytes -= segment.space.size
        self.directory.unlink(segment.name)


def _let_go(live: dict[int, Extent], key: int, freed: deque[_Freed], block: _Freed) -> None:
    # At once, not when the block is collected: the key is an address, which the next array may get.
    del live[key]
    freed.append(block)
