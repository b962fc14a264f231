"""Puts on their way in: what was announced, what has arrived, and how much may wait in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvboost.checksum import checksum
from kvboost.errors import ChecksumError, InputError, QuotaError
from kvboost.types import NewChunk, PutRequest
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire import assemble, convert
from kvboost.wire.frames import Frame


class Staging:
    """Memory for puts that are not whole yet, bounded by the cache's own budget.

    Parameters
    ----------
    max_bytes
        Bytes that all puts together may announce at a time.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held = 0
        self._lock = threading.Lock()

    @contextmanager
    def hold(self, nbytes: int) -> Iterator[None]:
        """Reserve ``nbytes`` before any of them is read.

        Raises
        ------
        QuotaError
            If they do not fit.
        """
        if nbytes > self.max_bytes:
            raise QuotaError(f"chunks announce {nbytes} bytes, the whole budget is {self.max_bytes}; offer fewer")
        with self._lock:
            if self._held + nbytes > self.max_bytes:
                raise QuotaError(f"chunks announce {nbytes} bytes while other puts hold {self._held}; offer them later")
            self._held += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._held -= nbytes


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
    memory: Callable[[int], assemble.Bytes] = assemble.empty,
) -> PutRequest:
    """Read the frames that ``header`` announced; ``memory`` gives the bytes that a chunk is read into.

    Raises
    ------
    TruncatedStreamError, DataLossError
        If bytes are missing or out of place.
    ChecksumError
        If a chunk's bytes are not those that were announced.
    InputError
        If more follows than was announced.
    """
    frames = _only_frames(parts)
    chunks: list[NewChunk] = []
    for i, announced in enumerate(header.chunks):
        payload = assemble.fill(frames, None, i, memory(announced.nbytes))
        if checksum(payload) != announced.checksum:
            raise ChecksumError(f"chunks[{i}].checksum does not match the bytes that arrived; send them again")
        chunks.append(convert.new_chunk_from_proto(announced, payload, f"chunks[{i}]"))
    if next(frames, None) is not None:
        raise InputError(f"frame follows after the last byte of the {len(chunks)} chunks that the header announced")
    return PutRequest(header.namespace, tuple(header.token_ids), tuple(chunks))


def _only_frames(parts: Iterator[Frame | pb.PutHeader]) -> Iterator[Frame]:
    for part in parts:
        if not isinstance(part, Frame):
            raise InputError("header stands twice: only the first message of a Put may be the header")
        yield part
