"""A put in calls of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvboost.client.transport import Part
from kvboost.errors import TensorError
from kvboost.types import KVLayout, NewChunk, PutReceipt
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire import frames


def nbytes_of(chunk: NewChunk) -> int:
    """Return the size of a chunk's K/V; what is no buffer is refused."""
    try:
        return memoryview(chunk.payload).nbytes
    except TypeError:
        raise TensorError(f"payload must be a buffer of bytes, not {type(chunk.payload).__name__}") from None


def check_payloads(chunks: Sequence[NewChunk], layout: KVLayout | None) -> None:
    """Refuse a payload that is none, or whose size is not that of its span where the layout is known.

    Raises
    ------
    TensorError
    """
    for number, chunk in enumerate(chunks):
        nbytes = nbytes_of(chunk)
        wanted = len(chunk.span) * layout.token_bytes if layout else nbytes
        if nbytes != wanted:
            raise TensorError(
                f"chunks[{number}].payload has {nbytes} bytes, {len(chunk.span)} tokens of this layout take {wanted}"
            )


def batches(chunks: Sequence[NewChunk], limit: int) -> Iterator[list[NewChunk]]:
    """Cut ``chunks`` into lists of at most ``limit`` bytes; at least one list, and no empty one after it."""
    batch: list[NewChunk] = []
    size = 0
    for chunk in chunks:
        if batch and size + nbytes_of(chunk) > limit:
            yield batch
            batch, size = [], 0
        batch.append(chunk)
        size += nbytes_of(chunk)
    if batch or not chunks:
        yield batch


def parts_of(header: pb.PutHeader, batch: Sequence[NewChunk]) -> Iterator[Part]:
    """Yield the messages of one put."""
    yield header
    for index, chunk in enumerate(batch):
        yield from frames.split(index, chunk.payload)


def total(a: PutReceipt, b: PutReceipt) -> PutReceipt:
    """Return the sums of two receipts."""
    return PutReceipt(
        a.stored + b.stored,
        a.duplicate + b.duplicate,
        a.over_variants + b.over_variants,
        a.too_large + b.too_large,
    )
