"""Whole chunks from the messages of a fetch, sent or shown."""

from __future__ import annotations

from collections.abc import Iterator

from kvboost.client.lease import Lease
from kvboost.errors import DataLossError
from kvboost.types import ChunkKV, Handover
from kvboost.wire.assemble import empty, fill
from kvboost.wire.frames import Frame


def chunks(frames: Iterator[Frame], lease: Lease | None = None) -> Iterator[ChunkKV]:
    """Yield whole chunks of a Fetch stream; errors as of ``fill`` and :meth:`Lease.chunks`."""
    for first in frames:
        if first.handles:
            if lease is None:
                raise DataLossError("the server sent handles to a client without a lease; fetch again")
            yield from lease.chunks(first.handles)
            continue
        if first.total_bytes == 0:
            raise DataLossError(f"the first frame of chunk {first.chunk} announces no total_bytes; fetch it again")
        payload = fill(frames, first, first.chunk, empty(first.total_bytes))
        yield ChunkKV(first.chunk, payload, first.checksum, Handover.FRAMES)
