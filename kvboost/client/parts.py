"""Chunks that come part by part: the first layers of all of them before the last layers of any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import xxhash

from kvboost.errors import ChecksumError, DataLossError, TruncatedStreamError
from kvboost.types import ChunkPart
from kvboost.wire.assemble import empty, fill
from kvboost.wire.frames import Frame


@dataclass(slots=True)
class _Begun:
    part_bytes: int
    checksum: int
    done: int = 0
    seen: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)


def read_parts(frames: Iterator[Frame], parts: int) -> Iterator[ChunkPart]:
    """Yield the parts of chunks from the frames of a Fetch in ``parts`` parts.

    Raises
    ------
    ChecksumError
        Instead of the last part of a chunk whose bytes are not those that were put.
    TruncatedStreamError, DataLossError
        If bytes are missing or out of place.
    """
    begun: dict[int, _Begun] = {}
    for first in frames:
        chunk = begun.get(first.chunk)
        if chunk is None:
            if first.total_bytes == 0 or first.total_bytes % parts:
                raise DataLossError(f"chunk {first.chunk} of {first.total_bytes} bytes has no {parts} parts")
            chunk = begun[first.chunk] = _Begun(first.total_bytes // parts, first.checksum)
        payload = fill(frames, first, first.chunk, empty(chunk.part_bytes), chunk.done * chunk.part_bytes)
        chunk.seen.update(payload)
        chunk.done += 1
        if chunk.done == parts and chunk.seen.intdigest() != chunk.checksum:
            raise ChecksumError(
                f"the K/V of chunk {first.chunk} do not match their checksum; evict the chunk", first.chunk
            )
        yield ChunkPart(first.chunk, chunk.done - 1, payload)
    if any(chunk.done < parts for chunk in begun.values()):
        raise TruncatedStreamError("the stream of K/V ended before the last part of every chunk; fetch again")
