"""The interface of repair strategies."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvboost.runtime.plan import Plan
from kvboost.runtime.slab import SlabCache


@dataclass(frozen=True, slots=True)
class RepairContext:
    """What a strategy may look at.

    Attributes
    ----------
    cache
        The slab with all reused K/V in place, keys re-rotated. A strategy may write to positions that are
        computed later anyway, to no others.
    token_ids
        ``[N]``, on the model's device.
    budget_tokens
        Token passes through all layers that repair may cost, its own selection passes included.
    question_tokens
        How many of the last computed tokens, at most, stand for the question.
    lock
        Held while the model runs with another attention function.
    """

    model: PreTrainedModel
    cache: SlabCache
    plan: Plan
    token_ids: Tensor
    budget_tokens: int
    question_tokens: int
    lock: threading.Lock

    @property
    def candidates(self) -> Tensor:
        """Positions of all approximately reused tokens, ascending."""
        spans = [run.span for run in self.plan.runs if not run.lossless]
        parts = [torch.arange(s.start, s.end, device=self.token_ids.device) for s in spans]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long, device=self.token_ids.device)


@dataclass(frozen=True, slots=True)
class Selection:
    """What a strategy chose.

    Attributes
    ----------
    positions
        Reused positions to recompute, ascending.
    pass_tokens
        Token passes through all layers that choosing them took.
    """

    positions: Tensor
    pass_tokens: int = 0


class Repair(Protocol):
    """Chooses which reused tokens to recompute."""

    def select(self, context: RepairContext) -> Selection:
        """Return positions within the budget; none where the budget does not pay for choosing them."""
        ...
