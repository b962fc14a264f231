"""The free ranges of one segment: best fit, neighbours joined again when they come back."""

from __future__ import annotations

from bisect import bisect_left, insort


class FreeSpace:
    """Which bytes of ``[0, size)`` are free. Not safe for use from several threads.

    Best fit keeps large ranges whole for large chunks; ties go to the lowest offset. Both take a bisection.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_bytes = size
        self._by_size: list[tuple[int, int]] = [(size, 0)]
        self._size_at: dict[int, int] = {0: size}
        self._start_of: dict[int, int] = {size: 0}

    @property
    def largest(self) -> int:
        """Length of the longest free range; 0 if there is none."""
        return self._by_size[-1][0] if self._by_size else 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in use."""
        return self.free_bytes == self.size

    def take(self, nbytes: int) -> int | None:
        """Take a range out; return its offset, or None if no free range is long enough."""
        at = bisect_left(self._by_size, (nbytes, 0))
        if at == len(self._by_size):
            return None
        size, start = self._by_size[at]
        self._drop(start, size)
        if size > nbytes:
            self._add(start + nbytes, size - nbytes)
        self.free_bytes -= nbytes
        return start

    def give(self, start: int, nbytes: int) -> None:
        """Put a taken range back."""
        self.free_bytes += nbytes
        end = start + nbytes
        if end in self._size_at:
            after = self._size_at[end]
            self._drop(end, after)
            nbytes += after
        if start in self._start_of:
            before = self._start_of[start]
            length = start - before
            self._drop(before, length)
            start, nbytes = before, nbytes + length
        self._add(start, nbytes)

    def _add(self, start: int, nbytes: int) -> None:
        insort(self._by_size, (nbytes, start))
        self._size_at[start] = nbytes
        self._start_of[start + nbytes] = start

    def _drop(self, start: int, nbytes: int) -> None:
        del self._by_size[bisect_left(self._by_size, (nbytes, start))]
        del self._size_at[start]
        del self._start_of[start + nbytes]
