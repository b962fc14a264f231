"""The one forward pass that fills what is not reused.

The unchanged model runs over the tokens to compute, at their true positions, under a mask by position, and the
slab writes their K/V between the reused ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvboost.runtime.attention.grouped import in_blocks
from kvboost.runtime.attention.masks import position_masks
from kvboost.runtime.kv.residual_shift import layer_shifts
from kvboost.runtime.kv.slab import SlabCache, SplicePass
from kvboost.runtime.model.support import ModelSupport, last_logits_only
from kvboost.runtime.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Splice:
    """Tokens to compute over a slab that holds the reused K/V.

    Attributes
    ----------
    scattered
        ``[S]`` positions before the tail, ascending: gaps between reused spans, and tokens under repair.
    tail_start
        The tail ``[tail_start, N)`` is everything after the last reused token; transformers' own prefill runs
        it, and only has to be told of the scattered tokens.
    """

    cache: SlabCache
    token_ids: Tensor
    scattered: Tensor
    tail_start: int
    shift_plan: Plan | None
    support: ModelSupport

    def positions(self, end: int) -> Tensor:
        """Return the positions of the pass, ascending, ``[Q]``."""
        tail = torch.arange(self.tail_start, end, device=self.token_ids.device)
        return torch.cat([self.scattered, tail])

    @contextmanager
    def passing(self, model: PreTrainedModel, end: int) -> Iterator[dict[str, Any]]:
        """Make the cache write the next forward pass, over everything up to ``end``, at the splice's positions.

        Yields
        ------
        dict
            Arguments of that pass: ``input_ids`` and ``position_ids`` (``[1, Q]``) and ``attention_mask``.
        """
        positions = self.positions(end)
        mask = position_masks(model, positions, end)
        shifts = None
        if self.shift_plan is not None:
            runs = [run.span for run in self.shift_plan.runs if run.repairable]
            shifts = layer_shifts(runs, positions, self.support.ropes)
        self.cache.set_splice(SplicePass(positions, end, shifts))
        try:
            with in_blocks(mask, positions):
                yield {
                    "input_ids": self.token_ids[positions][None],
                    "position_ids": positions[None],
                    "attention_mask": mask,
                }
        finally:
            self.cache.set_splice(None)

    def run(self, model: PreTrainedModel, end: int) -> Tensor | None:
        """Compute everything before position ``end`` in one pass of our own; afterwards the cache holds it.

        Returns
        -------
        Tensor or None
            The last position's logits, ``[1, vocab]``; None if there was nothing left to compute.
        """
        logits = None
        if len(self.scattered) > 0:
            with self.passing(model, end) as arguments:
                logits = self._forward(model, **arguments)
        elif self.tail_start < end:
            # An ordinary pass over a suffix: this also goes with models that take no positions or masks of ours.
            self.cache.set_length(self.tail_start)
            logits = self._forward(model, input_ids=self.token_ids[self.tail_start : end][None])
        self.cache.set_length(end)
        return logits

    def _forward(self, model: PreTrainedModel, **arguments: Any) -> Tensor:
        output = model(cache=self.cache, use_cache=True, **arguments, **last_logits_only(model))
        logits: Tensor = output.logits[:, -1]
        return logits


def gaps_before_tail(plan: Plan, device: torch.device | str) -> Tensor:
    """Return the positions between reused spans, ascending."""
    parts = [torch.arange(s.start, s.end, device=device) for s in plan.compute if s.end <= plan.tail_start]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long, device=device)
