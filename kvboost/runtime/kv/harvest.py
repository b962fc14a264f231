"""New chunks for the cache, cut out of a finished request's slab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kvboost.errors import NonFiniteError
from kvboost.protocols import PromptSegmenter
from kvboost.runtime.kv.codec import pack
from kvboost.runtime.plan.diff import InOrder
from kvboost.runtime.plan.plan import Plan
from kvboost.types import KVLayout, NewChunk, Tier


@dataclass(frozen=True, slots=True)
class Harvest:
    """New chunks, and how many others are left out because their K/V, or some before them, are not finite."""

    chunks: tuple[NewChunk, ...]
    non_finite: int = 0


def new_chunks(
    token_ids: Sequence[int],
    plan: Plan,
    segmenter: PromptSegmenter,
    keys: Tensor,
    values: Tensor,
    layout: KVLayout,
) -> Harvest:
    """Return the chunks of a sequence that were computed here.

    A chunk with approximately reused tokens is left out: it is in the cache already, and its K/V under the new
    history are approximate. A chunk computed after such tokens is marked as not exact. A chunk that was
    reused whole in the prefix tier is there already, and what a continued request computed was offered then. From the
    first substitute on nothing is stored: its K/V belong to a wording that the token ids do not tell. Nor is anything
    from the first chunk on whose K/V are not finite: what follows has attended to them.

    Parameters
    ----------
    token_ids
        The prompt and what was generated, ``M`` tokens, all of which have K/V.
    plan
        What the prompt reused.
    keys, values
        ``[layers, kv_heads, M, dim]``.
    """
    approximate = InOrder([piece.target for piece in plan.reuse if piece.tier is not Tier.PREFIX])
    whole = {
        piece.target
        for piece in plan.reuse
        if piece.tier is Tier.PREFIX and len(piece.target) == len(piece.donor.token_ids)
    }
    # What a request continues begins at 0, and what it computed itself was offered when it was computed.
    held = max((piece.target.end for piece in plan.reuse if piece.donor.chunk_id < 0), default=0)
    first_approximate = plan.approximate_from
    first_substitute = plan.substitute_from
    chunks: list[NewChunk] = []
    cut = segmenter.segment(token_ids).chunks
    for i, chunk in enumerate(cut):
        span = chunk.span
        if first_substitute is not None and span.end > first_substitute:
            break
        if span in whole or span.end <= held or approximate.overlapping(span):
            continue
        exact = first_approximate is None or span.end <= first_approximate
        try:
            payload = pack(keys[:, :, span.start : span.end], values[:, :, span.start : span.end], layout)
        except NonFiniteError:
            return Harvest(tuple(chunks), len(cut) - i)
        chunks.append(NewChunk(span, chunk.text, exact, payload))
    return Harvest(tuple(chunks))
