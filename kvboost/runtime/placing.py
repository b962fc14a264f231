"""Putting fetched K/V into the slab, re-rotated to their new positions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from kvboost.runtime.codec import unpack
from kvboost.runtime.plan import Plan, ReuseSpan
from kvboost.runtime.rope import Rope, rotate
from kvboost.runtime.slab import SlabCache
from kvboost.runtime.support import ModelSupport
from kvboost.types import ChunkKV, Handover


class Placer:
    """Writes the K/V of one plan's donors into a slab as they arrive.

    Keys are always rotated from the stored original, in one step: repeated rotation would drift. ``handover`` is the
    slowest way by which what was placed came here.
    """

    def __init__(self, plan: Plan, support: ModelSupport, cache: SlabCache) -> None:
        self.handover: Handover | None = None
        self._support = support
        self._cache = cache
        self._wanted: dict[int, list[ReuseSpan]] = {}
        for piece in plan.reuse:
            self._wanted.setdefault(piece.donor.chunk_id, []).append(piece)
        self._angles: dict[tuple[Rope, int], tuple[Tensor, Tensor]] = {}

    def place(self, chunks: Iterable[ChunkKV]) -> set[int]:
        """Place ``chunks`` after checking their checksums; return the ids of donors that did not come.

        Raises
        ------
        ChecksumError, TensorError
            If a chunk's bytes are not what was put, or do not fit the model's layout.
        """
        missing = set(self._wanted)
        for chunk in chunks:
            pieces = self._wanted.get(chunk.chunk_id, [])
            if pieces:
                tokens = len(pieces[0].donor.token_ids)
                keys, values = unpack(chunk.verified(), self._support.layout, tokens)
                for piece in pieces:
                    self._place(piece, keys, values)
                missing.discard(chunk.chunk_id)
                self.handover = Handover.slowest((self.handover, chunk.handover))
        return missing

    def _place(self, piece: ReuseSpan, keys: Tensor, values: Tensor) -> None:
        source = slice(piece.offset, piece.offset + len(piece.target))
        target = slice(piece.target.start, piece.target.end)
        key_slab = self._cache.key_slab[:, 0, :, target]
        self._cache.value_slab[:, 0, :, target] = values[:, :, source]
        keys = keys[:, :, source].to(key_slab.device)
        if piece.shift == 0:
            key_slab.copy_(keys)
            return
        groups = self._support.rope_layers()
        whole = len(groups) == 1 and len(next(iter(groups.values()))) == len(self._support.ropes)
        for rope, layers in groups.items():
            cos, sin = self._angles_of(rope, piece.shift)
            if whole:
                rotate(keys, cos, sin, rope, key_slab)
            else:
                for layer in layers:
                    rotate(keys[layer], cos, sin, rope, key_slab[layer])
        for layer, layer_rope in enumerate(self._support.ropes):
            if layer_rope is None:
                key_slab[layer] = keys[layer]

    def _angles_of(self, rope: Rope, shift: int) -> tuple[Tensor, Tensor]:
        known = self._angles.get((rope, shift))
        if known is None:
            known = rope.angles(torch.tensor([shift], device=self._cache.key_slab.device))
            self._angles[rope, shift] = known
        return known
