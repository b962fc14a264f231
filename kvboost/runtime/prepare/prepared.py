"""A prompt on its way to its forward pass, and one that is ready for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from kvboost.reuse import ReuseReport
from kvboost.runtime.control.effective_policy import EffectivePolicy
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.kv.splice import Splice
from kvboost.runtime.plan.plan import Plan
from kvboost.runtime.prepare.report import count_tiers, tier_spans
from kvboost.types import Handover


class Stages:
    """Seconds spent by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent inside to ``name``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Gathered:
    """A prompt whose borrowed K/V are in place, before any pass of the model.

    Attributes
    ----------
    cache
        The slab; what the plan does not reuse is still to be computed.
    token_ids
        ``[N]``, on the model's device.
    new_tokens
        Tokens that will be decoded: head room of the slab.
    effective
        The policy that it is prepared under; None where nothing was looked up.
    handover
        How the reused K/V came here.
    fallback
        The fault that made it do without reuse, or None.
    stores
        Whether what is computed for it may be stored.
    namespace
        Key of the namespace that it was looked up in, and that its K/V belong to.
    """

    plan: Plan
    cache: SlabCache
    token_ids: Tensor
    new_tokens: int
    stages: Stages
    namespace: str
    effective: EffectivePolicy | None = None
    handover: Handover | None = None
    fallback: str | None = None
    stores: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """One prompt, ready for its forward pass.

    Attributes
    ----------
    splice
        What is left to compute, over the slab that holds the rest.
    recomputed
        Positions that had a donor and are recomputed all the same.
    effective
        The policy that it was prepared under; None for a fallback.
    handover
        How the reused K/V came here.
    stores
        Whether what is computed for it may be stored.
    namespace
        Key of the namespace that it was looked up in, and that its K/V belong to.
    """

    plan: Plan
    splice: Splice
    namespace: str
    recomputed: tuple[int, ...] = ()
    recompute_ratio: float = 0.0
    fallback: str | None = None
    stages: Stages | None = None
    effective: EffectivePolicy | None = None
    handover: Handover | None = None
    stores: bool = True

    @property
    def may_be_continued(self) -> bool:
        """Whether a later turn may go on from its K/V: not so where the call brought a policy of its own."""
        return self.effective is not None and self.effective.steers and self.effective.policy.continuing

    def report(self, ttft_s: float) -> ReuseReport:
        """Return the report of this prompt."""
        spans = tier_spans(self.plan, self.recomputed)
        return ReuseReport(
            prompt_tokens=self.plan.num_tokens,
            tokens_by_tier=count_tiers(spans),
            recomputed_tokens=len(self.recomputed),
            recompute_ratio=self.recompute_ratio,
            ttft_s=ttft_s,
            stages_s=dict(self.stages.seconds) if self.stages is not None else {},
            declined=self.plan.declined + (self.effective.declined if self.effective is not None else ()),
            fallback=self.fallback,
            similarity=min((piece.similarity for piece in self.plan.reuse), default=1.0),
            spans=spans,
            handover=self.handover,
        )
