"""What a put would make of its chunks, before their K/V are sent."""

from __future__ import annotations

from kvboost.errors import InputError
from kvboost.index.hashes import SequenceHasher
from kvboost.index.table import MANY_VARIANTS, NamespaceTable, Verdict
from kvboost.types import ChunkVerdict, PutRequest


def variants_of(request: PutRequest, max_variants: int) -> int:
    """Return how many histories of one content a cache of ``max_variants`` keeps for whoever puts ``request``."""
    return max(max_variants, MANY_VARIANTS) if request.prefix_only else max_variants


def judged(table: NamespaceTable, request: PutRequest, max_variants: int) -> tuple[ChunkVerdict, ...]:
    """Return a verdict on each chunk; payloads and texts are not looked at.

    Raises
    ------
    InputError
        If a span ends behind the tokens, or a token id is out of range.
    """
    hasher = SequenceHasher(request.token_ids)
    verdicts = []
    for number, chunk in enumerate(request.chunks):
        start, end = chunk.span.start, chunk.span.end
        if end > len(request.token_ids):
            raise InputError(
                f"chunks[{number}].span ends at {end}, token_ids has {len(request.token_ids)}; send them all"
            )
        history = (hasher.at(start), hasher.at(end))
        verdict, _ = table.judge(history, hasher.content(start, end), end - start, chunk.exact, max_variants)
        identity = b"".join((table.namespace.key.encode(), *history, b"\1" if chunk.exact else b"\0"))
        verdicts.append(
            ChunkVerdict(verdict in (Verdict.STORE, Verdict.REPLACE), verdict == Verdict.DUPLICATE, identity)
        )
    return tuple(verdicts)
