"""The interface of repair strategies."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Selection:
    """What a strategy chose.

    Attributes
    ----------
    positions
        Reused positions to recompute, ascending.
    pass_tokens
        Token passes through all layers that choosing them took; a pass through some of the layers counts as
        that share.
    declined
        Why the budget was not spent as asked, or None.
    """

    positions: Tensor
    pass_tokens: float = 0.0
    declined: str | None = None

    @property
    def cost(self) -> float:
        """Token passes through all layers: choosing the tokens and recomputing them."""
        return len(self.positions) + self.pass_tokens

    def joined(self, other: Selection) -> Selection:
        """Return both selections as one; they must not overlap."""
        reasons = [reason for reason in (self.declined, other.declined) if reason is not None]
        positions = torch.cat([self.positions, other.positions]).sort().values
        return Selection(positions, self.pass_tokens + other.pass_tokens, "; ".join(reasons) or None)


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
    head_tokens
        How many tokens at the head of a run are recomputed, at most, by a strategy that repairs heads.
    taken
        Positions that another strategy chose before, to be left alone; none if None.
    """

    model: PreTrainedModel
    cache: SlabCache
    plan: Plan
    token_ids: Tensor
    budget_tokens: float
    question_tokens: int
    lock: threading.Lock = field(repr=False)
    head_tokens: int = 32
    taken: Tensor | None = None

    @property
    def candidates(self) -> Tensor:
        """Positions of all approximately reused tokens that may still be chosen, ascending."""
        spans = [run.span for run in self.plan.runs if run.repairable]
        parts = [torch.arange(s.start, s.end, device=self.token_ids.device) for s in spans]
        if not parts:
            return torch.empty(0, dtype=torch.long, device=self.token_ids.device)
        positions = torch.cat(parts)
        return positions if self.taken is None else positions[~torch.isin(positions, self.taken)]

    def nothing(self, declined: str | None = None) -> Selection:
        """Return the empty selection, with the reason why it is empty."""
        return Selection(torch.empty(0, dtype=torch.long, device=self.token_ids.device), declined=declined)

    def limited(self, share: float) -> RepairContext:
        """Return the context with ``share`` of the budget."""
        return replace(self, budget_tokens=self.budget_tokens * share)

    def after(self, first: Selection) -> RepairContext:
        """Return the context that is left for a second strategy after ``first`` was chosen."""
        taken = first.positions if self.taken is None else torch.cat([self.taken, first.positions])
        return replace(self, budget_tokens=self.budget_tokens - first.cost, taken=taken)


class Repair(Protocol):
    """Chooses which reused tokens to recompute."""

    def select(self, context: RepairContext) -> Selection:
        """Return positions within the budget; none, and why, where the budget does not pay for choosing them."""
        ...
