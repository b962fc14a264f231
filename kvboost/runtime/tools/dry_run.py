"""The plan of a prompt and what it is estimated to cost, without the model's forward pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvboost.runtime.cost.cost_gate import judge
from kvboost.runtime.cost.estimate import Estimator, repaired_tokens
from kvboost.runtime.cost.meter import LEAST, FetchCost, path_of
from kvboost.runtime.plan.plan import Plan
from kvboost.runtime.prepare.prepared import Stages
from kvboost.runtime.serve.engine import Engine
from kvboost.runtime.tools.explain import check_fits
from kvboost.types import Tier


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a request would reuse.

    Attributes
    ----------
    plan
        All that the cache would lend, whether or not it is worth it.
    repaired_tokens
        Tokens with a donor that repair may compute anew, at most.
    stages_s
        Seconds that segmenting, matching and planning took.
    full_s, reuse_s
        Estimated seconds of full prefill, and of the plan with fetch, placing and repair; None where this machine was
        not calibrated (``policy.worth_it``).
    verdict
        Why not all of the plan would be carried out, or None.
    """

    plan: Plan
    repaired_tokens: int
    stages_s: dict[str, float]
    full_s: float | None
    reuse_s: float | None
    verdict: str | None


def dry_run(engine: Engine, token_ids: Sequence[int]) -> DryRun:
    """Plan a prompt of ``N`` tokens as a request would be planned; nothing is computed, nothing stored.

    What is lent is fetched a few times and thrown away: the estimate needs to know how fast this cache hands over.

    Raises
    ------
    PromptError
        If the prompt is empty or longer than the model's context.
    KVBoostError
        What the cache raises: there is nothing to fall back to.
    """
    check_fits(engine, token_ids)
    engine.writer.flush()
    policy, stages = engine.policy, Stages()
    obstacle = engine.obstacle(len(token_ids))
    nothing = Plan(len(token_ids), ()).noting(obstacle)
    plan = nothing if obstacle else engine.preparer.plan(token_ids, policy, stages)
    model = engine.costs.model
    full_s = reuse_s = verdict = None
    if model is not None:
        rates = Estimator(model, _fetch_cost(engine, plan), engine.support.layout)
        full_s, reuse_s = rates.full_s(plan), rates.reuse_s(plan, policy)
        if plan.reuse and policy.worth_it:
            verdict = judge(plan, policy, rates, Tier.EXACT in engine.support.tiers).reason
    return DryRun(plan, int(repaired_tokens(plan, policy)), stages.seconds, full_s, reuse_s, verdict)


def _fetch_cost(engine: Engine, plan: Plan) -> FetchCost:
    """Return what fetching costs, timed now where requests have not timed it yet."""
    meter, path = engine.costs.meter, path_of(engine.cache)
    tries = LEAST if plan.reuse and meter.cost(path) is None else 0
    for _ in range(tries):
        deque(meter.timed(engine.cache.fetch(engine.namespace.key, plan.chunk_ids())), maxlen=0)
    return meter.cost(path) or FetchCost(0.0, 0.0)
