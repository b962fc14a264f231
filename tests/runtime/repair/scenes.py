"""A prompt whose slab holds the K/V of its own full prefill, so that every fault in it is one that a test planted."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.kv.splice import Splice, gaps_before_tail
from kvboost.runtime.model.support import examine
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.runtime.repair import Repair, RepairContext, Selection
from kvboost.types import Donor, Span, Tier


@dataclass(frozen=True)
class Scene:
    """A prompt ``ids`` (``[N]``), its full prefill, and a slab with the reused part of it."""

    model: PreTrainedModel
    ids: Tensor
    plan: Plan
    cache: SlabCache
    full_logits: Tensor

    @torch.no_grad()
    def select(
        self, strategy: type[Repair], budget_tokens: float, question_tokens: int = 64, head_tokens: int = 32
    ) -> Selection:
        context = RepairContext(
            model=self.model,
            cache=self.cache,
            plan=self.plan,
            token_ids=self.ids,
            budget_tokens=budget_tokens,
            question_tokens=question_tokens,
            lock=threading.Lock(),
            head_tokens=head_tokens,
        )
        return strategy().select(context)

    @torch.no_grad()
    def corrupt(self, positions: Sequence[int], keys: bool = True, values: bool = True, from_layer: int = 0) -> None:
        """Add noise to the slab's K/V at ``positions``."""
        generator = torch.Generator().manual_seed(7)
        for wanted, slab in ((keys, self.cache.key_slab), (values, self.cache.value_slab)):
            if wanted:
                part = slab[from_layer:, 0][:, :, list(positions)]
                slab[from_layer:, 0, :, list(positions)] = part + 2.0 * torch.randn(part.shape, generator=generator)

    @torch.no_grad()
    def error_after(self, selection: Selection) -> float:
        """Recompute ``selection`` and the rest in one pass; return how far the last logits are from full prefill's."""
        scattered = torch.cat([gaps_before_tail(self.plan, "cpu"), selection.positions]).sort().values
        splice = Splice(self.cache, self.ids, scattered, self.plan.tail_start, None, examine(self.model))
        with splice.passing(self.model, len(self.ids)) as arguments:
            logits = self.model(**arguments, cache=self.cache, use_cache=True).logits[0, -1]
        return float((logits - self.full_logits).abs().max() / self.full_logits.abs().max())


@torch.no_grad()
def scene(model: PreTrainedModel, ids: Tensor, pieces: Iterable[tuple[int, int, Tier]]) -> Scene:
    """Reuse ``pieces`` ``(start, end, tier)`` of the prompt, each from a donor sequence of its own."""
    full = DynamicCache()
    logits = model(input_ids=ids[None], cache=full, use_cache=True).logits[0, -1]
    spans = tuple(_piece(ids, number, *piece) for number, piece in enumerate(pieces, start=1))
    cache = SlabCache(examine(model).layout, len(ids) + 8)
    for span in spans:
        at = slice(span.target.start, span.target.end)
        for layer, filled in enumerate(full.layers):
            cache.key_slab[layer][:, :, at] = filled.keys[:, :, at]
            cache.value_slab[layer][:, :, at] = filled.values[:, :, at]
    return Scene(model, ids, Plan(len(ids), spans), cache, logits)


def _piece(ids: Tensor, number: int, start: int, end: int, tier: Tier) -> ReuseSpan:
    tokens = tuple(ids[start:end].tolist())
    hashes = (f"before {number}".encode(), f"after {number}".encode())
    donor = Donor(number, tokens, start if tier is Tier.PREFIX else start + number, *hashes, exact=True)
    return ReuseSpan(Span(start, end), donor, 0, tier)
