"""Deviation repair: recompute the tokens whose K/V deviate most from fresh ones, judged at an early layer.

The idea is that of CacheBlend (Yao et al., 2024, arXiv:2405.16444): tokens that deviate in the first layers
deviate in the later ones too. Keys and values of layer 0 know nothing of the history, so layer 1 is the first
that tells. All tokens before the tail that are not lossless run through the first layers only: the model runs
over a cache whose layer 1 notes the fresh K/V and ends the pass. Nothing here knows a model's architecture.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache

from kvboost.errors import ModelSupportError
from kvboost.runtime.attention.masks import position_masks
from kvboost.runtime.attention.transformers_api import DynamicLayer
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.model.support import last_logits_only
from kvboost.runtime.repair.base import RepairContext, Selection

PROBE_LAYER = 1


class DeviationRepair:
    """Recompute the reused tokens whose K/V at layer 1 deviate most from fresh ones."""

    def select(self, context: RepairContext) -> Selection:
        """Run the selection pass and return the top positions that the rest of the budget pays for.

        The pass is charged for every layer that it enters.
        """
        num_layers = len(context.cache.layers)
        if num_layers <= PROBE_LAYER:
            return context.nothing("a model of one layer has no deviation to go by")
        candidates = context.candidates
        if len(candidates) == 0:
            return context.nothing()
        probed = _probed(context)
        pass_tokens = len(probed) * (PROBE_LAYER + 1) / num_layers
        count = min(int(context.budget_tokens - pass_tokens), len(candidates))
        if count <= 0:
            return context.nothing(
                f"the repair budget of {context.budget_tokens:.0f} tokens does not pay for the deviation pass "
                f"({pass_tokens:.0f} tokens)"
            )
        deviation = torch.zeros(context.plan.tail_start, device=candidates.device)
        deviation[probed] = _deviation(context, probed)
        best = deviation[candidates].topk(count).indices
        return Selection(candidates[best].sort().values, pass_tokens)


class _Reached(Exception):  # noqa: N818 - no error: it ends a pass that has served its purpose
    """Carries the fresh K/V of the probed layer, each ``[1, kv_heads, Q, dim]``, out of the model."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__("the probed layer is reached")
        self.keys = keys
        self.values = values


class _ProbeLayer(DynamicLayer):
    """A layer over a slab that it does not change: returns the slab's K/V with the fresh ones between them."""

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor, last: bool) -> None:
        super().__init__()
        self.is_initialized = True
        self.keys, self.values = keys, values
        self._positions = positions
        self._last = last

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Return all K/V that attention sees, or end the pass at the last layer."""
        if self._last:
            raise _Reached(key_states, value_states)
        keys, values = self.keys.clone(), self.values.clone()
        keys[:, :, self._positions] = key_states
        values[:, :, self._positions] = value_states
        return keys, values


class _ProbeCache(DynamicCache):
    """The first layers of a slab, up to position ``length``, for a pass over ``positions``."""

    def __init__(self, slab: SlabCache, positions: Tensor, length: int) -> None:
        super().__init__()
        self.layers = [
            _ProbeLayer(slab.key_slab[i][:, :, :length], slab.value_slab[i][:, :, :length], positions, i == PROBE_LAYER)
            for i in range(PROBE_LAYER + 1)
        ]
        self.layer_class_to_replicate = None


def _probed(context: RepairContext) -> Tensor:
    """Return the positions that must run: everything before the tail whose K/V are not lossless, ascending."""
    runs = torch.ones(context.plan.tail_start, dtype=torch.bool, device=context.token_ids.device)
    for run in context.plan.runs:
        if run.lossless:
            runs[run.span.start : run.span.end] = False
    return runs.nonzero().flatten()


def _deviation(context: RepairContext, positions: Tensor) -> Tensor:
    """Return how far the slab's K/V at the probed layer are from fresh ones, ``[Q]`` fp32.

    Squared differences over all heads, of keys and of values, each relative to the mean square of the fresh ones.
    """
    length = context.plan.tail_start
    fresh = _fresh(context, positions, length)
    cache = context.cache
    total = torch.zeros(len(positions), device=positions.device)
    for new, slab in ((fresh.keys, cache.key_slab), (fresh.values, cache.value_slab)):
        gap = new[0].float() - slab[PROBE_LAYER, 0][:, positions].float()
        total += gap.square().sum(dim=(0, 2)) / new.float().square().mean().clamp_min(1e-12)
    return total


def _fresh(context: RepairContext, positions: Tensor, length: int) -> _Reached:
    """Run ``positions`` through the first layers and return the K/V with which they enter the probed one."""
    model = context.model
    try:
        model(
            input_ids=context.token_ids[positions][None],
            position_ids=positions[None],
            attention_mask=position_masks(model, positions, length),
            cache=_ProbeCache(context.cache, positions, length),
            use_cache=True,
            **last_logits_only(model),
        )
    except _Reached as reached:
        return reached
    raise ModelSupportError(f"{type(model).__name__} writes no K/V at layer {PROBE_LAYER}; choose another repair")
