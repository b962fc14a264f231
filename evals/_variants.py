"""The policies that the quality eval compares."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvboost.policy import ReusePolicy
from kvboost.runtime.repair import STRATEGIES
from kvboost.types import Tier

BUDGETS = (0.05, 0.15, 0.30)
_NO_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy under the name of its row.

    Attributes
    ----------
    repair
        The strategy, with ``, no shift`` where the residual shift is off; ``prefix only`` and ``none`` (rotate
        only) are baselines.
    """

    repair: str
    policy: ReusePolicy

    @property
    def recompute_ratio(self) -> float:
        """The budget; what was charged is measured."""
        return 0.0 if self.policy.repair == "none" else self.policy.recompute_ratio


def variants(default: ReusePolicy, quick: bool) -> list[Variant]:
    """Return the baselines, and every strategy at every budget with and without the shift.

    The default strategy runs at the default budget too. Strategies mixed of two, and rows without the shift for other
    strategies than the default, are left to the full form.
    """
    bare = replace(default, repair="none")
    made = [Variant("prefix only", replace(bare, tiers=(Tier.PREFIX,)))]
    made += core_variants(default)
    made += [Variant(f"{default.repair}, no shift", replace(default, recompute_ratio=r, shift=False)) for r in BUDGETS]
    for name in sorted(set(STRATEGIES) - {"none", default.repair}):
        if quick and "+" in name:
            continue
        # Heads may be as long as the budget reaches: strategies are compared at equal cost.
        policy = replace(default, repair=name, head_tokens=_NO_LIMIT)
        made += [Variant(name, replace(policy, recompute_ratio=r, shift=True)) for r in BUDGETS]
        if not quick:
            made += [Variant(f"{name}, no shift", replace(policy, recompute_ratio=r, shift=False)) for r in BUDGETS]
    return made


def core_variants(default: ReusePolicy) -> list[Variant]:
    """Return rotate only, and the default strategy with the shift at every budget: what a quick run repeats."""
    ratios = sorted({*BUDGETS, default.recompute_ratio} - {0.0})
    shifted = replace(default, shift=True)
    return [
        Variant("none", replace(default, repair="none")),
        *(Variant(default.repair, replace(shifted, recompute_ratio=ratio)) for ratio in ratios),
    ]
