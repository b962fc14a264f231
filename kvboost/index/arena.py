"""Payloads in shared memory: plain files, mapped here to write and by clients of the same host to read.

Every namespace has files (segments) of its own, since a mapping shows all that is in it. A segment's space is really
allocated when it is made and never truncated, so reading it cannot raise SIGBUS, whatever becomes of this process.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvboost.errors import CacheUnavailableError, QuotaError
from kvboost.index.arena_dir import ArenaDirectory
from kvboost.index.payloads import Bytes
from kvboost.index.space import FreeSpace

ALIGN = 64
HEADER_BYTES = 64
SEGMENT_BYTES = 64 << 20
_LEAST_SEGMENT_BYTES = 64 << 10
_MOST_SEGMENTS = 256  # each holds a file descriptor
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


@dataclass(slots=True, eq=False)
class _Segment:
    name: str
    memory: mmap.mmap
    space: FreeSpace


@dataclass(slots=True)
class _Shelf:
    """The segments of one namespace."""

    namespace: str
    segments: list[_Segment] = field(default_factory=list)
    forgotten: bool = False


@dataclass(frozen=True, slots=True)
class _Freed:
    shelf: _Shelf
    segment: _Segment
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
        by_size = min(max(self.capacity_bytes // 32, _LEAST_SEGMENT_BYTES), SEGMENT_BYTES)
        self._segment_bytes = _pages(max(by_size, self.capacity_bytes // _MOST_SEGMENTS))
        self.directory = ArenaDirectory(base, self.capacity_bytes)
        self.reserved_bytes = 0
        self._lock = threading.Lock()
        self._shelves: dict[str, _Shelf] = {}
        self._live: dict[int, Extent] = {}
        self._generation = secrets.randbits(32)
        # Filled by finalizers, which may run inside any other call of this thread: they must take no lock.
        self._freed: deque[_Freed] = deque()
        self._closed = False

    def allocate(self, namespace: str, nbytes: int) -> Bytes:
        """Return ``nbytes`` of the namespace's segments; errors as of the protocol."""
        needed = HEADER_BYTES + -(-nbytes // ALIGN) * ALIGN
        with self._lock:
            if self._closed:
                raise CacheUnavailableError("the arena is closed; make a new one")
            self._collect()
            shelf = self._shelves.setdefault(namespace, _Shelf(namespace))
            found = self._take(shelf, needed)
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

    def forget(self, namespace: str) -> None:
        """Remove the namespace's segments, each as soon as it is empty."""
        with self._lock:
            shelf = self._shelves.pop(namespace, None)
            if shelf is not None:
                shelf.forgotten = True
                self._collect()
                for segment in _empty(shelf):
                    self._remove(shelf, segment)

    def close(self) -> None:
        """Remove the files. Payloads that somebody still reads stay valid."""
        with self._lock:
            self._closed = True
            self._shelves.clear()
        self.directory.close()

    def _block(self, shelf: _Shelf, segment: _Segment, start: int, needed: int, nbytes: int) -> Bytes:
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

    def _take(self, shelf: _Shelf, needed: int) -> tuple[_Segment, int] | None:
        for segment in shelf.segments:
            start = segment.space.take(needed)
            if start is not None:
                return segment, start
        grown = self._grow(shelf, needed)
        if grown is None:
            return None
        start = grown.space.take(needed)
        return None if start is None else (grown, start)

    def _grow(self, shelf: _Shelf, needed: int) -> _Segment | None:
        """Add a segment to a shelf, as large as the shelf so far within limits; None if there is no room."""
        own = sum(segment.space.size for segment in shelf.segments)
        wanted = _pages(max(min(max(own, _LEAST_SEGMENT_BYTES), self._segment_bytes), needed))
        least = _pages(max(min(self._segment_bytes // 8, wanted), needed))
        for size in (wanted, least):
            if self.reserved_bytes + size > self.capacity_bytes:
                self._release_empty()
            if self.reserved_bytes + size <= self.capacity_bytes:
                segment = self._create(shelf.namespace, size)
                if segment is not None:
                    shelf.segments.append(segment)
                    return segment
        return None

    def _create(self, namespace: str, size: int) -> _Segment | None:
        # Never used again, so that an old name cannot show new bytes.
        name = f"{namespace}-{secrets.token_hex(8)}.kv"
        try:
            file = self.directory.create(name, size)
        except OSError:
            return None  # somebody else fills the file system
        try:
            memory = mmap.mmap(file, size)
        finally:
            os.close(file)
        self.reserved_bytes += size
        return _Segment(name, memory, FreeSpace(size))

    def _collect(self) -> None:
        """Take back what finalizers left. A shelf keeps one empty segment of the usual size, for the next put."""
        while self._freed:
            freed = self._freed.popleft()
            shelf, segment = freed.shelf, freed.segment
            _GENERATION.pack_into(segment.memory, freed.start, 0)
            segment.space.give(freed.start, freed.nbytes)
            if segment.space.is_empty and segment in shelf.segments:
                spare = segment.space.size == self._segment_bytes and sum(1 for _ in _empty(shelf)) == 1
                if shelf.forgotten or not spare:
                    self._remove(shelf, segment)

    def _release_empty(self) -> None:
        for shelf in self._shelves.values():
            for segment in _empty(shelf):
                self._remove(shelf, segment)

    def _remove(self, shelf: _Shelf, segment: _Segment) -> None:
        """Give a segment back; its memory goes when the last mapping does."""
        shelf.segments.remove(segment)
        self.reserved_bytes -= segment.space.size
        self.directory.unlink(segment.name)


def _let_go(live: dict[int, Extent], key: int, freed: deque[_Freed], block: _Freed) -> None:
    # At once, not when the block is collected: the key is an address, which the next array may get.
    del live[key]
    freed.append(block)


def _empty(shelf: _Shelf) -> Iterator[_Segment]:
    return iter([segment for segment in shelf.segments if segment.space.is_empty])


def _pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
