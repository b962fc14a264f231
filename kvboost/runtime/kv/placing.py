"""Putting fetched K/V into the slab, re-rotated to their new positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from kvboost.errors import NonFiniteError, TensorError
from kvboost.runtime.kv.codec import unpack
from kvboost.runtime.kv.finite import all_finite
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.kv.workers import Hands
from kvboost.runtime.model.rope import Rope, rotate
from kvboost.runtime.model.support import ModelSupport
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.types import ChunkKV, Handover

Angles = dict[tuple[Rope, int], tuple[Tensor, Tensor]]


class Placer:
    """Writes the K/V of one plan's donors into a slab as they arrive.

    Keys are always rotated from the stored original, in one step: repeated rotation would drift. ``handover`` is the
    slowest way by which what was placed came here.
    """

    def __init__(self, plan: Plan, support: ModelSupport, cache: SlabCache, hands: Hands) -> None:
        self.handover: Handover | None = None
        self._support = support
        self._cache = cache
        self._hands = hands
        self._wanted = plan.by_donor()
        self._angles = angles_of_plan(plan, support, cache.key_slab.device)

    def place(self, chunks: Iterable[ChunkKV]) -> set[int]:
        """Place ``chunks`` and check their checksums; return the ids of donors that did not come.

        After an error the slab holds what must not be used.

        Raises
        ------
        ChecksumError, TensorError
            If a chunk's bytes are not what was put, or do not fit the model's layout.
        NonFiniteError
            If they are infinite or not a number.
        """
        missing = set(self._wanted)

        def jobs() -> Iterator[Callable[[], None]]:
            for chunk in chunks:
                if chunk.chunk_id in self._wanted:
                    missing.discard(chunk.chunk_id)
                    self.handover = Handover.slowest((self.handover, chunk.handover))
                    yield partial(self._place_chunk, chunk)

        self._hands.run(jobs())
        return missing

    def _place_chunk(self, chunk: ChunkKV) -> None:
        """Place the pieces of one chunk. Its bytes are checked last: had they changed meanwhile, it would be seen."""
        pieces = self._wanted[chunk.chunk_id]
        payload = memoryview(chunk.payload).cast("B")
        try:
            keys, values = unpack(payload, self._support.layout, len(pieces[0].donor.token_ids))
        except TensorError:
            chunk.verified()  # damage is named first: it is mended by eviction
            raise
        for piece in pieces:
            place_layers(piece, 0, keys, values, self._support, self._cache, self._angles)
        chunk.verified()
        check_last_layer(chunk.chunk_id, keys, values)


def check_last_layer(chunk_id: int, keys: Tensor, values: Tensor) -> None:
    """Refuse a chunk whose last layer's K/V, of ``[layers, kv_heads, T, dim]``, are not finite.

    Every number was looked at when the chunk was put. A token that is broken in some layer is so in all that follow,
    so the last one tells nearly as much as all of them, for a fraction of the time; what it misses shows in the logits.

    Raises
    ------
    NonFiniteError
    """
    if not (all_finite(keys[-1]) and all_finite(values[-1])):
        raise NonFiniteError(f"the K/V of chunk {chunk_id} are not finite; evict the chunk", chunk_id)


def angles_of_plan(plan: Plan, support: ModelSupport, device: torch.device) -> Angles:
    """Return cosine and sine of every shift in the plan, for every rope of the model."""
    return {
        (rope, shift): rope.angles(torch.tensor([shift], device=device))
        for shift in {piece.shift for piece in plan.reuse}
        for rope in support.rope_layers()
    }


def place_layers(
    piece: ReuseSpan, first: int, keys: Tensor, values: Tensor, support: ModelSupport, cache: SlabCache, angles: Angles
) -> None:
    """Place layers of one piece, from ``first`` on; ``keys`` and ``values`` are ``[layers, kv_heads, T, dim]``."""
    layers = slice(first, first + len(keys))
    source = slice(piece.offset, piece.offset + len(piece.target))
    target = slice(piece.target.start, piece.target.end)
    placed = cache.key_slab[layers, 0, :, target]
    cache.value_slab[layers, 0, :, target] = values[:, :, source]
    keys = keys[:, :, source].to(placed.device)
    ropes = support.ropes[layers]
    if piece.shift == 0 or not any(ropes):
        placed.copy_(keys)
    elif ropes[0] is not None and len(set(ropes)) == 1:
        rotate(keys, *angles[ropes[0], piece.shift], ropes[0], placed)
    else:
        for rope, its_keys, its_place in zip(ropes, keys, placed, strict=True):
            if rope is None:
                its_place.copy_(its_keys)
            else:
                rotate(its_keys, *angles[rope, piece.shift], rope, its_place)
