"""Chunks of a put, checked against the namespace and hashed. Callers never send hashes."""

from __future__ import annotations

from dataclasses import dataclass

from kvboost.errors import InputError, TensorError
from kvboost.index.hashes import SequenceHasher
from kvboost.types import Donor, Namespace, NewChunk, PutRequest


@dataclass(frozen=True, slots=True)
class Offer:
    """An offered chunk with its tokens, hashes and payload size."""

    chunk: NewChunk
    token_ids: tuple[int, ...]
    parent_hash: bytes
    prefix_hash: bytes
    content: bytes
    nbytes: int

    def donor(self, chunk_id: int) -> Donor:
        """Return the chunk as a donor."""
        return Donor(
            chunk_id=chunk_id,
            token_ids=self.token_ids,
            start=self.chunk.span.start,
            parent_hash=self.parent_hash,
            prefix_hash=self.prefix_hash,
            exact=self.chunk.exact,
        )


def check_offers(namespace: Namespace, request: PutRequest, hasher: SequenceHasher) -> list[Offer]:
    """Check and hash all chunks of a put; ``hasher`` is that of its tokens.

    Raises
    ------
    InputError
        If a span ends behind the tokens, or a token id is out of range.
    TensorError
        If a payload's byte count does not fit its span and the layout.
    """
    offers = []
    for number, chunk in enumerate(request.chunks):
        span = chunk.span
        if span.end > len(request.token_ids):
            raise InputError(
                f"chunks[{number}].span ends at {span.end}, token_ids has {len(request.token_ids)}; send them all"
            )
        nbytes = memoryview(chunk.payload).nbytes
        wanted = len(span) * namespace.layout.token_bytes
        if nbytes != wanted:
            raise TensorError(
                f"chunks[{number}].payload has {nbytes} bytes, {len(span)} tokens of this layout take {wanted}"
            )
        token_ids = tuple(request.token_ids[span.start : span.end])
        parent, prefix = hasher.at(span.start), hasher.at(span.end)
        offers.append(Offer(chunk, token_ids, parent, prefix, hasher.content(span.start, span.end), nbytes))
    return offers
