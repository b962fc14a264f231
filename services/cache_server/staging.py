"""Puts on their way in: what was announced, what has arrived, and how much may wait in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvboost.checksum import checksum
from kvboost.errors import ChecksumError, InputError, QuotaError, TruncatedStreamError
from kvboost.types import NewChunk, PutRequest
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire import assemble, convert
from kvboost.wire.frames import Frame

_RETRY_S = 1.0


class Staging:
    """Memory for puts that are not whole yet. Bytes count as they arrive, not as they are announced.

    Parameters
    ----------
    max_bytes
        Bytes of all puts together that may have arrived and not been stored; also what one put may announce.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._lock = threading.Lock()

    @contextmanager
    def put(self, announced_bytes: int) -> Iterator[Callable[[int], None]]:
        """Give what a put calls with the size of each piece that arrived; all of it is let go at the end.

        Raises
        ------
        QuotaError
            If the put could never fit; from the call that it gives, if a piece does not fit beside other puts.
        """
        if announced_bytes > self.max_bytes:
            raise QuotaError(
                f"chunks announce {announced_bytes} bytes, the whole budget is {self.max_bytes}; offer fewer"
            )
        mine = 0

        def take(nbytes: int) -> None:
            nonlocal mine
            with self._lock:
                if self.held_bytes + nbytes > self.max_bytes:
                    error = QuotaError(f"{self.held_bytes} bytes of puts under way wait already; offer these later")
                    error.retry_after_s = _RETRY_S
                    raise error
                self.held_bytes += nbytes
                mine += nbytes

        try:
            yield take
        finally:
            with self._lock:
                self.held_bytes -= mine


def read_header(parts: Iterator[Frame | pb.PutHeader]) -> pb.PutHeader:
    """Read and check the first message of a Put.

    Raises
    ------
    InputError
        If it is no header, or announces a chunk that cannot be.
    """
    header = next(parts, None)
    if not isinstance(header, pb.PutHeader):
        raise InputError("header is missing: the first message of a Put must be the header")
    for i, chunk in enumerate(header.chunks):
        span = convert.span_from_proto(chunk.span, f"chunks[{i}].span")
        if span.end > len(header.token_ids):
            raise InputError(f"chunks[{i}].span ends at {span.end}, token_ids has only {len(header.token_ids)}")
        if chunk.nbytes == 0:
            raise InputError(f"chunks[{i}].nbytes is 0; a chunk has K/V for each of its tokens")
    return header


def read_chunks(
    header: pb.PutHeader,
    parts: Iterator[Frame | pb.PutHeader],
    take: Callable[[int], None],
    memory: Callable[[int], assemble.Bytes],
) -> PutRequest:
    """Read the frames that ``header`` announced.

    ``take`` is told the size of each; ``memory`` gives the bytes that a chunk is read into, once its first frame came.

    Raises
    ------
    TruncatedStreamError, DataLossError
        If bytes are missing or out of place.
    ChecksumError
        If a chunk's bytes are not those that were announced.
    InputError
        If more follows than was announced.
    """
    frames = _only_frames(parts, take)
    chunks: list[NewChunk] = []
    for i, announced in enumerate(header.chunks):
        first = next(frames, None)
        if first is None or first.chunk != i:
            raise TruncatedStreamError(f"chunk {i} ends after 0 of {announced.nbytes} bytes; send it again")
        payload = assemble.fill(frames, first, i, memory(announced.nbytes))
        if checksum(payload) != announced.checksum:
            raise ChecksumError(f"chunks[{i}].checksum does not match the bytes that arrived; send them again")
        chunks.append(convert.new_chunk_from_proto(announced, payload, f"chunks[{i}]"))
    if next(frames, None) is not None:
        raise InputError(f"frame follows after the last byte of the {len(chunks)} chunks that the header announced")
    return PutRequest(header.namespace, tuple(header.token_ids), tuple(chunks), header.prefix_only)


def _only_frames(parts: Iterator[Frame | pb.PutHeader], take: Callable[[int], None]) -> Iterator[Frame]:
    for part in parts:
        if not isinstance(part, Frame):
            raise InputError("header stands twice: only the first message of a Put may be the header")
        take(memoryview(part.data).nbytes)
        yield part
