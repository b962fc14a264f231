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
from kvboost.runtime.attention.masks import position_masks, rows_at_once
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
    """A layer like the slab's, which it does not change, with the fresh K/V of the passes so far between the others.

    ``positions`` are those of the pass under way, ascending.
    """

    def __init__(self, keys: Tensor, values: Tensor, last: bool) -> None:
        super().__init__()
        self.is_initialized = True
        self.keys, self.values = (keys, values) if last else (keys.clone(), values.clone())
        self.positions = torch.empty(0, dtype=torch.long, device=keys.device)
        self._last = last

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Return the K/V up to the pass's last token, or end the pass at the last layer."""
        if self._last:
            raise _Reached(key_states, value_states)
        self.keys[:, :, self.positions] = key_states
        self.values[:, :, self.positions] = value_states
        reach = int(self.positions[-1]) + 1
        return self.keys[:, :, :reach], self.values[:, :, :reach]


class _ProbeCache(DynamicCache):
    """The first layers of a slab, up to position ``length``, for passes over parts of it."""

    def __init__(self, slab: SlabCache, length: int) -> None:
        super().__init__()
        self.layers: list[_ProbeLayer] = [
            _ProbeLayer(slab.key_slab[i][:, :, :length], slab.value_slab[i][:, :, :length], i == PROBE_LAYER)
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

    Squared differences over all heads, of keys and of values, each relative to the mean square of the fresh ones. A
    token sees only what comes before it, so a long prompt goes through in pieces.
    """
    slabs = context.cache.key_slab[PROBE_LAYER, 0], context.cache.value_slab[PROBE_LAYER, 0]
    cache = _ProbeCache(context.cache, context.plan.tail_start)
    gaps: tuple[list[Tensor], list[Tensor]] = [], []
    squares = torch.zeros(2, device=positions.device)
    for piece in torch.split(positions, rows_at_once(context.model, context.plan.tail_start)):
        fresh = _fresh(context, cache, piece)
        for i, new in enumerate((fresh.keys[0].float(), fresh.values[0].float())):
            gaps[i].append((new - slabs[i][:, piece].float()).square().sum(dim=(0, 2)))
            squares[i] += new.square().mean() * (len(piece) / len(positions))
    keys, values = torch.cat(gaps[0]), torch.cat(gaps[1])
    return keys / squares[0].clamp_min(1e-12) + values / squares[1].clamp_min(1e-12)


def _fresh(context: RepairContext, cache: _ProbeCache, positions: Tensor) -> _Reached:
    """Run ``positions`` through the first layers and return the K/V with which they enter the probed one."""
    model = context.model
    for layer in cache.layers:
        layer.positions = positions
    try:
        model(
            input_ids=context.token_ids[positions][None],
            position_ids=positions[None],
            attention_mask=position_masks(model, positions, int(positions[-1]) + 1),
            cache=cache,
            use_cache=True,
            **last_logits_only(model),
        )
    except _Reached as reached:
        return reached
    raise ModelSupportError(f"{type(model).__name__} writes no K/V at layer {PROBE_LAYER}; choose another repair")
