"""Segments: mapped files of one namespace, and the shelf that they stand on."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvboost.index.space import FreeSpace

LEAST_SEGMENT_BYTES = 64 << 10
_USUAL_SEGMENT_BYTES = 16 << 20
_SEGMENTS = 128
_MOST_SEGMENTS = 512


@dataclass(slots=True, eq=False)
class Segment:
    """One file. A closed one gives out nothing more, and goes as soon as it is empty."""

    name: str
    memory: memoryview
    space: FreeSpace
    closed: bool = False

    @property
    def share_used(self) -> float:
        """Share of its bytes that are given out."""
        return 1.0 - self.space.free_bytes / self.space.size


@dataclass(slots=True)
class Shelf:
    """The segments of one namespace."""

    namespace: str
    segments: list[Segment] = field(default_factory=list)
    forgotten: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.space.size for segment in self.segments)

    def empty(self) -> list[Segment]:
        """Return the segments that nothing lies in."""
        return [segment for segment in self.segments if segment.space.is_empty]

    def take(self, nbytes: int) -> tuple[Segment, int] | None:
        """Take ``nbytes`` out of a segment; return where they begin, or None if none has them."""
        for segment in self.segments:
            start = None if segment.closed else segment.space.take(nbytes)
            if start is not None:
                return segment, start
        return None


def usual_size(capacity_bytes: int) -> int:
    """Return the size of segments in an arena of this capacity.

    Small ones are soon empty, and so serve another namespace; every one is a file, and a mapping and a descriptor in
    each client.
    """
    size = min(max(capacity_bytes // _SEGMENTS, LEAST_SEGMENT_BYTES), _USUAL_SEGMENT_BYTES)
    return pages(max(size, capacity_bytes // _MOST_SEGMENTS))


def sizes_to_try(shelf: Shelf, needed: int, usual_bytes: int, capacity_bytes: int) -> Iterator[int]:
    """Yield sizes for a new segment: as large as the shelf so far within limits, and the least that will do.

    It takes several chunks, if a small arena can bear that: of one or two a segment much would stay empty.
    """
    several = min(8 * needed, capacity_bytes // 32)
    wanted = pages(max(min(max(shelf.nbytes, LEAST_SEGMENT_BYTES), max(usual_bytes, several)), needed))
    yield wanted
    least = pages(max(min(usual_bytes // 8, wanted), needed))
    if least < wanted:
        yield least


def pages(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to whole pages."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
