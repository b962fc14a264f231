"""The forward passes that fill what is not reused: one, or several for a long prompt.

The unchanged model runs over the tokens to compute, at their true positions, under a mask by position, and the
slab writes their K/V between the reused ones. Where one pass would need a mask larger than
:data:`~kvboost.runtime.attention.masks.MASK_ELEMENTS`, it is cut into pieces in order of position: a token sees only
what comes before it, so the K/V are the same but for rounding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvboost.runtime.attention.grouped import in_blocks
from kvboost.runtime.attention.masks import position_masks, rows_at_once
from kvboost.runtime.kv.residual_shift import LayerShift, layer_shifts
from kvboost.runtime.kv.slab import SlabCache, SplicePass
from kvboost.runtime.model.support import ModelSupport, last_logits_only
from kvboost.runtime.plan.diff import InOrder
from kvboost.runtime.plan.plan import Plan
from kvboost.types import Span, Tier


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
    shift_runs
        The runs whose kept tokens are shifted as their recomputed ones show; None for none.
    shifted_to
        Where passes before this one have shifted kept tokens up to.
    """

    cache: SlabCache
    token_ids: Tensor
    scattered: Tensor
    tail_start: int
    shift_runs: InOrder | None
    support: ModelSupport
    shifted_to: int = 0

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
        with self._passing(model, self.positions(end), end, end) as arguments:
            yield arguments

    def ahead(self, model: PreTrainedModel, end: int) -> Splice:
        """Compute in passes of our own what does not go into one pass over everything up to ``end``; return the rest.

        Afterwards the cache's length is where the tail that is left begins.
        """
        left, done = self, self.one_ahead(model, end)
        while done is not left:
            left, done = done, done.one_ahead(model, end)
        return left

    def one_ahead(self, model: PreTrainedModel, end: int) -> Splice:
        """Compute one piece of what does not go into one pass; return the rest, or the splice itself if it does."""
        rows = rows_at_once(model, end)
        if len(self.scattered) == 0:
            return self._tail_ahead(model, rows, end)
        if len(self.scattered) + end - self.tail_start <= rows:
            return self
        count = self._piece(model)
        positions = self.scattered[:count]
        length = int(positions[-1]) + 1
        following = self._following(count, length)
        with self._passing(model, positions, length, following) as arguments:
            self._forward(model, **arguments)
        self.cache.set_length(self.tail_start)
        return replace(self, scattered=self.scattered[count:], shifted_to=following)

    def run(self, model: PreTrainedModel, end: int) -> Tensor | None:
        """Compute everything before position ``end``; afterwards the cache holds it.

        Returns
        -------
        Tensor or None
            The last position's logits, ``[1, vocab]``; None if there was nothing left to compute.
        """
        logits = None
        last = self.ahead(model, end)
        if len(last.scattered) > 0:
            with last.passing(model, end) as arguments:
                logits = self._forward(model, **arguments)
        elif last.tail_start < end:
            # An ordinary pass over a suffix: this also goes with models that take no positions or masks of ours.
            logits = last._suffix(model, end)
        self.cache.set_length(end)
        return logits

    def _tail_ahead(self, model: PreTrainedModel, rows: int, end: int) -> Splice:
        """Compute a piece of a tail over reused tokens; with none before it, attention needs no mask.

        Where frequencies follow the prompt's length, the tail is one pass, or its pieces would not agree.
        """
        if self.tail_start == 0 or end - self.tail_start <= rows or Tier.EXACT not in self.support.tiers:
            return self
        self._suffix(model, self.tail_start + rows)
        return replace(self, tail_start=self.tail_start + rows)

    def _piece(self, model: PreTrainedModel) -> int:
        """Return how many of the scattered tokens the next pass takes, if possible whole runs."""

        def too_many(count: int) -> bool:
            return count > rows_at_once(model, int(self.scattered[count - 1]) + 1)

        count = max(1, bisect_left(range(1, len(self.scattered) + 1), True, key=too_many))
        if self.shift_runs is None or count == len(self.scattered):
            return count
        reached = self.shift_runs.overlapping(Span(0, int(self.scattered[count]) + 1))
        if not reached:
            return count
        start = torch.tensor(reached[-1].start, device=self.scattered.device)
        before = int(torch.searchsorted(self.scattered, start))
        return before if before >= max(count // 2, 1) else count

    def _following(self, count: int, length: int) -> int:
        """Return where the pass behind the first ``count`` scattered tokens, all below ``length``, begins to shift.

        A run that it is the first to reach is all its own.
        """
        if count == len(self.scattered):
            return self.tail_start
        at = int(self.scattered[count])
        its_run = self.shift_runs.overlapping(Span(at, at + 1)) if self.shift_runs is not None else []
        return its_run[0].start if its_run and its_run[0].start >= length else at

    @contextmanager
    def _passing(
        self, model: PreTrainedModel, positions: Tensor, length: int, following: int
    ) -> Iterator[dict[str, Any]]:
        """Make the cache write the next pass at ``positions``, over ``length`` keys; ``following`` begins the next."""
        mask = position_masks(model, positions, length)
        self.cache.set_splice(SplicePass(positions, length, self._shifts(positions, following)))
        try:
            with in_blocks(mask, positions):
                yield {
                    "input_ids": self.token_ids[positions][None],
                    "position_ids": positions[None],
                    "attention_mask": mask,
                }
        finally:
            self.cache.set_splice(None)

    def _shifts(self, positions: Tensor, following: int) -> list[LayerShift | None] | None:
        if self.shift_runs is None or self.shifted_to >= following:
            return None
        within = Span(self.shifted_to, following)
        return layer_shifts(self.shift_runs.overlapping(within), positions, self.support.ropes, within)

    def _suffix(self, model: PreTrainedModel, end: int) -> Tensor:
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
