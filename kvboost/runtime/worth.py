"""Is it worth it? A hit that costs more than the prefill it saves is declined.

Three plans are compared by what they are estimated to cost: the plan as it is, the plan without the runs that cost
more to fetch and place than to compute, and full prefill. Another than the plan as it is must win by a wide margin: the
estimates are rough, and a lossless prefix of a long prompt is not to be lost to noise. Nothing is decided before
prefill was calibrated and the cache at hand was timed.

Now and then a hit that would be declined is taken all the same, or a cache that was slow once would never be timed
again.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace

from kvboost.policy import ReusePolicy
from kvboost.reuse import ReuseReport
from kvboost.runtime.calibrate import Calibration
from kvboost.runtime.cost import CostModel, TimedPass
from kvboost.runtime.meter import FetchCost, FetchMeter
from kvboost.runtime.plan import Plan, Run
from kvboost.runtime.report import ReuseCounters
from kvboost.runtime.support import ModelSupport
from kvboost.types import KVLayout, Span, Tier

MARGIN = 1.25
"""The plan must cost this many times what another costs before it is given up, ..."""
LEAST_LOSS_S = 0.02
"""... and lose at least so much, in seconds."""
TRIED_AGAIN = 16
"""One in so many hits that would be declined is taken, to time the cache again."""
KEPT_PASSES = 32
# Shorter passes are timed often enough in calibration, and cost nothing that is worth a decision.
_LEAST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Rates:
    """Everything that an estimate rests on."""

    model: CostModel
    fetch: FetchCost
    layout: KVLayout

    def full_s(self, plan: Plan) -> float:
        """Return the estimated seconds of computing the whole prompt."""
        return self.model.forward_s(plan.num_tokens)

    def reuse_s(self, plan: Plan, policy: ReusePolicy) -> float:
        """Return the estimated seconds of the plan: fetch, place, repair, and the pass over what is left.

        Repair is taken to spend its whole budget: one more pass, and the tokens that it computes again.
        """
        reused = sum(len(piece.target) for piece in plan.reuse)
        again = 0.0 if policy.repair == "none" else policy.recompute_ratio * plan.repairable_tokens
        computed = plan.num_tokens - reused + again
        passes_s = self.model.forward_s(computed, plan.num_tokens - computed)
        passes_s += self.model.pass_s if again > 0 else 0.0
        return self._moved_s(plan) + passes_s

    def marginal_s(self, plan: Plan, run: Run) -> float:
        """Return what reusing one run costs more than computing it in the same pass; negative where it saves."""
        tokens = len(run.span)
        others = tuple(p for p in plan.reuse if not _within(p.target, run.span))
        moved = self._moved_s(plan) - self._moved_s(Plan(plan.num_tokens, others))
        return moved - self.model.token_s * tokens - self.model.pair_s * tokens * run.span.start

    def _moved_s(self, plan: Plan) -> float:
        donors = {piece.donor.chunk_id: len(piece.donor.token_ids) for piece in plan.reuse}
        fetched = sum(donors.values()) * self.layout.token_bytes
        moved = sum(len(piece.target) for piece in plan.reuse) * self.layout.token_bytes
        key_share = self.layout.key_dim / (self.layout.key_dim + self.layout.value_dim)
        shifted = sum(len(piece.target) for piece in plan.reuse if piece.shift != 0)
        rotated = shifted * self.layout.token_bytes * key_share
        return self.fetch.fetch_s(fetched) + self.model.place_s(moved - rotated, rotated)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The plan that is to be carried out, and why it is not the one that was asked about (or None)."""

    plan: Plan
    reason: str | None = None


def judge(plan: Plan, policy: ReusePolicy, rates: Rates, gaps: bool = True) -> Verdict:
    """Return ``plan``, or a part of it, whichever is estimated to be fastest.

    Parameters
    ----------
    gaps
        Whether what is computed may stand between reused runs; otherwise only a leading part is kept.
    """
    whole_s = rates.reuse_s(plan, policy)
    losing = [run.span for run in plan.runs if rates.marginal_s(plan, run) > 0.0]
    part = _without(plan, losing, gaps)
    part_s = rates.reuse_s(part, policy) if part.reuse else rates.full_s(plan)
    full_s = rates.full_s(plan)
    best_s = min(part_s, full_s)
    if whole_s < MARGIN * best_s or whole_s < best_s + LEAST_LOSS_S:
        return Verdict(plan)
    if full_s <= part_s:
        reused = sum(len(piece.target) for piece in plan.reuse)
        why = f"reusing {reused} tokens would take {whole_s:.2f} s, computing the prompt {full_s:.2f} s"
        return Verdict(replace(plan, reuse=()), f"not worth it: {why} (estimated)")
    dropped = sum(len(span) for span in losing)
    why = f"{dropped} tokens in {len(losing)} of {len(plan.runs)} runs would take longer to fetch than to compute"
    return Verdict(part, f"not worth it: {why} (estimated)")


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

    def weigh(self, plan: Plan, policy: ReusePolicy, path: str) -> Plan:
        """Return the plan that is worth carrying out when K/V come by ``path``, with a note on what was declined."""
        model, fetch = self._model, self.meter.cost(path)
        if model is None or fetch is None or not plan.reuse or not policy.worth_it:
            return plan
        verdict = judge(plan, policy, Rates(model, fetch, self.support.layout), Tier.EXACT in self.support.tiers)
        if verdict.reason is None:
            return plan
        with self._lock:
            self._declined += 1
            again = self._declined % TRIED_AGAIN == 0
        if again:
            return plan
        self.counters.add("declined_hits")
        self.counters.add("declined_tokens", _reused(plan) - _reused(verdict.plan))
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


def _reused(plan: Plan) -> int:
    return sum(len(piece.target) for piece in plan.reuse)


def _within(inner: Span, outer: Span) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end


def _without(plan: Plan, spans: list[Span], gaps: bool) -> Plan:
    kept = tuple(p for p in plan.reuse if not any(_within(p.target, span) for span in spans))
    part = replace(plan, reuse=kept)
    return part if gaps else part.leading()
