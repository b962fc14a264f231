"""Is it worth it? A hit that costs more than the prefill it saves is declined.

Runs that cost more to fetch and place than to compute are left out, and where full prefill is estimated to be faster
than what remains, nothing is reused at all. Both need a wide margin: the estimates are rough, and a lossless prefix of
a long prompt is not to be lost to noise. Nothing is decided before prefill was calibrated and the cache at hand was
timed.

Now and then a hit that would be declined is taken all the same, or a cache that was slow once would never be timed
again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kvboost.policy import ReusePolicy
from kvboost.reuse import ReuseReport
from kvboost.runtime.control.counters import ReuseCounters
from kvboost.runtime.cost.calibrate import Calibration
from kvboost.runtime.cost.estimate import Estimator, RunCost
from kvboost.runtime.cost.meter import FetchMeter
from kvboost.runtime.cost.model import CostModel, TimedPass
from kvboost.runtime.model.support import ModelSupport
from kvboost.runtime.plan.plan import Plan
from kvboost.types import Handover, Tier

MARGIN = 1.25
"""Reuse must cost this many times what computing costs before it is given up, ..."""
LEAST_LOSS_S = 0.02
"""... and giving it up must save at least so much, in seconds."""
TRIED_AGAIN = 16
"""One in so many hits that would be declined is taken, to time the cache again."""
KEPT_PASSES = 32
# Shorter passes are timed often enough in calibration, and cost nothing that is worth a decision.
_LEAST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """The plan that is to be carried out, and why it is not the one that was asked about (or None)."""

    plan: Plan
    reason: str | None = None


def judge(plan: Plan, policy: ReusePolicy, rates: Estimator, gaps: bool = True) -> Verdict:
    """Return ``plan``, or what is left of it when everything is declined that is not worth it.

    Parameters
    ----------
    gaps
        Whether what is computed may stand between reused runs; otherwise only a leading part is kept.
    """
    full_s = rates.full_s(plan)
    costs = rates.runs(plan)
    losing = [run for run in costs if run.moved_s > MARGIN * run.computed_s]
    part = _without(plan, losing, gaps) if losing else plan
    whole_s = rates.reuse_s(plan, policy)
    part_s = rates.reuse_s(part, policy) if part.reuse else full_s
    if part_s > whole_s - LEAST_LOSS_S:
        part, part_s = plan, whole_s
    if not part.reuse or (part_s > MARGIN * full_s and part_s > full_s + LEAST_LOSS_S):
        why = f"reusing {plan.reused_tokens} tokens would take {whole_s:.2f} s, computing the prompt {full_s:.2f} s"
        return Verdict(replace(plan, reuse=()), f"not worth it: {why} (estimated)")
    if part is plan:
        return Verdict(plan)
    declined = f"{plan.reused_tokens - part.reused_tokens} tokens in {len(losing)} of {len(costs)} runs"
    return Verdict(part, f"not worth it: {declined} would take longer to fetch than to compute (estimated)")


@dataclass
class Costs:
    """The cost model of one boosted model, kept up to date by its requests. Safe to use from several threads.

    Attributes
    ----------
    support
        Layout of the K/V, and whether gaps may be computed.
    calibration
        What was timed at the start; None leaves every hit as it is.
    counters
        Those of the boosted model; ``declined_hits`` counts requests, ``declined_tokens`` what they would have reused.
    learns
        Whether requests' own passes are timed; not so on a device that works behind Python's back.
    """

    support: ModelSupport
    calibration: Calibration | None = None
    counters: ReuseCounters = field(default_factory=ReuseCounters)
    meter: FetchMeter = field(default_factory=FetchMeter)
    learns: bool = True

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: deque[TimedPass] = deque(maxlen=KEPT_PASSES)
        self._declined = 0
        self._model = self.calibration.model() if self.calibration is not None else None

    @property
    def model(self) -> CostModel | None:
        """The costs as they are known now; None where not enough was timed yet."""
        return self._model

    def weigh(self, plan: Plan, policy: ReusePolicy, path: Handover) -> Plan:
        """Return the plan that is worth carrying out when K/V come by ``path``, with a note on what was declined."""
        model, fetch = self._model, self.meter.cost(path)
        if model is None or fetch is None or not plan.reuse or not policy.worth_it:
            return plan
        verdict = judge(plan, policy, Estimator(model, fetch, self.support.layout), Tier.EXACT in self.support.tiers)
        if verdict.reason is None:
            return plan
        with self._lock:
            self._declined += 1
            again = self._declined % TRIED_AGAIN == 0
        if again:
            return plan
        self.counters.add("declined_hits")
        self.counters.add("declined_tokens", plan.reused_tokens - verdict.plan.reused_tokens)
        return verdict.plan.noting(verdict.reason)

    def observe(self, report: ReuseReport, seconds: float) -> None:
        """Learn from a request that the pass over what ``report`` says was computed took ``seconds``."""
        computed = report.prompt_tokens - report.reused_tokens
        if self.calibration is None or not self.learns or computed < _LEAST_TOKENS or seconds <= 0.0:
            return
        with self._lock:
            self._seen.append(TimedPass(computed, report.reused_tokens, seconds))
            self._model = self.calibration.model(self._seen)

    def priced(self, report: ReuseReport) -> ReuseReport:
        """Return the report, and those of its rows, with the seconds of prefill that were saved."""
        if self._model is None:
            return report
        if report.rows:
            rows = tuple(self.priced(row) for row in report.rows)
            return replace(report, rows=rows, saved_s=sum(row.saved_s or 0.0 for row in rows))
        return replace(report, saved_s=_saved_s(self._model, report))


def _saved_s(model: CostModel, report: ReuseReport) -> float:
    """Return the estimate of full prefill less that of what was computed, and less what fetch and repair took."""
    if report.reused_tokens == 0:
        return 0.0
    computed = report.prompt_tokens - report.reused_tokens
    prefill_s = model.forward_s(report.prompt_tokens) - model.forward_s(computed, report.reused_tokens)
    return prefill_s - sum(report.stages_s.get(stage, 0.0) for stage in ("fetch", "repair"))


def _without(plan: Plan, dropped: Iterable[RunCost], gaps: bool) -> Plan:
    starts = {piece.target.start for run in dropped for piece in run.pieces}
    part = replace(plan, reuse=tuple(piece for piece in plan.reuse if piece.target.start not in starts))
    return part if gaps else part.leading()
