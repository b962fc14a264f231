"""What a plan is estimated to cost, as a whole and run by run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvboost.policy import ReusePolicy
from kvboost.runtime.cost.meter import FetchCost
from kvboost.runtime.cost.model import CostModel
from kvboost.runtime.plan.plan import Plan, ReuseSpan, Run
from kvboost.types import KVLayout


@dataclass(frozen=True, slots=True)
class RunCost:
    """Seconds of fetching and placing one run's spans, and of computing its tokens in a pass that runs anyway."""

    pieces: tuple[ReuseSpan, ...]
    moved_s: float
    computed_s: float


def repaired_tokens(plan: Plan, policy: ReusePolicy) -> float:
    """Return how many tokens with a donor are computed all the same, at most."""
    budget = 0.0 if policy.repair == "none" else policy.recompute_ratio * plan.reused_tokens
    return min(budget, plan.repairable_tokens)


@dataclass(frozen=True, slots=True)
class Estimator:
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
        again = repaired_tokens(plan, policy)
        computed = plan.num_tokens - plan.reused_tokens + again
        passes_s = self.model.forward_s(computed, plan.num_tokens - computed)
        passes_s += self.model.pass_s if again > 0 else 0.0
        return self.fetch.fetch_s(self._fetched_bytes(plan.reuse)) + self._placed_s(plan.reuse) + passes_s

    def runs(self, plan: Plan) -> list[RunCost]:
        """Return what each run costs on its own.

        A donor that several runs share is charged to none of them, and the round trip only to a single run: leaving
        out one of several saves neither.
        """
        by_run = _pieces_by_run(plan)
        users = Counter(donor for pieces in by_run.values() for donor in {p.donor.chunk_id for p in pieces})
        costs = []
        for run, pieces in by_run.items():
            own = [piece for piece in pieces if users[piece.donor.chunk_id] == 1]
            moved_s = self.fetch.byte_s * self._fetched_bytes(own) + self._placed_s(pieces)
            moved_s += self.fetch.round_trip_s if len(by_run) == 1 else 0.0
            tokens = len(run.span)
            computed_s = self.model.token_s * tokens + self.model.pair_s * tokens * run.span.start
            costs.append(RunCost(tuple(pieces), moved_s, computed_s))
        return costs

    def _fetched_bytes(self, pieces: Sequence[ReuseSpan]) -> int:
        donors = {piece.donor.chunk_id: len(piece.donor.token_ids) for piece in pieces}
        return sum(donors.values()) * self.layout.token_bytes

    def _placed_s(self, pieces: Sequence[ReuseSpan]) -> float:
        moved = sum(len(piece.target) for piece in pieces) * self.layout.token_bytes
        shifted = sum(len(piece.target) for piece in pieces if piece.shift != 0)
        key_share = self.layout.key_dim / (self.layout.key_dim + self.layout.value_dim)
        rotated = shifted * self.layout.token_bytes * key_share
        return self.model.place_s(moved - rotated, rotated)


def _pieces_by_run(plan: Plan) -> dict[Run, list[ReuseSpan]]:
    """Return each run with its spans; both come in order."""
    by_run: dict[Run, list[ReuseSpan]] = {}
    pieces = deque(plan.reuse)
    for run in plan.runs:
        own = by_run.setdefault(run, [])
        while pieces and pieces[0].target.end <= run.span.end:
            own.append(pieces.popleft())
    return by_run
