"""Frames of K/V put together again: one buffer a chunk, filled in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvboost.errors import DataLossError, TruncatedStreamError
from kvboost.wire.frames import Frame

Bytes = npt.NDArray[np.uint8]


def empty(nbytes: int) -> Bytes:
    """Return fresh memory; not a bytearray, which would be filled with zeros first."""
    return np.empty(nbytes, dtype=np.uint8)


def fill(frames: Iterator[Frame], first: Frame | None, chunk: int, memory: Bytes, base: int = 0) -> memoryview:
    """Read the frames of one chunk into ``memory``, beginning with ``first`` if it was read already.

    ``memory`` stands for the chunk's bytes from ``base`` on.

    Returns
    -------
    memoryview
        Read-only view of ``memory``.

    Raises
    ------
    TruncatedStreamError
        If the stream ends or another chunk begins before the last byte.
    DataLossError
        If a frame leaves a gap, or goes past the end.
    """
    view, nbytes = memory.data, memory.nbytes
    filled = 0
    frame = first
    while filled < nbytes:
        if frame is None:
            frame = next(frames, None)
        if frame is None or frame.chunk != chunk:
            raise TruncatedStreamError(f"chunk {chunk} ends after {filled} of {nbytes} bytes; send it again")
        data = memoryview(frame.data).cast("B")
        end = filled + len(data)
        if frame.offset != base + filled or end > nbytes or not len(data):
            raise DataLossError(
                f"a frame of chunk {chunk} holds {len(data)} bytes at offset {frame.offset} where {base + filled} "
                f"of {base + nbytes} are due; send it again"
            )
        view[filled:end] = data
        filled, frame = end, None
    return view.toreadonly()
