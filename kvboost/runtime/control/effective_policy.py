"""What the controller lays down for one request: the user's policy, made stricter where the audit asked for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from kvboost.policy import ReusePolicy
from kvboost.types import Tier

STEPS = 3
LOOSEST_FIRST = (Tier.SUBSTITUTE, Tier.SIMILAR, Tier.EXACT)
"""The approximate tiers, the one that takes the greatest liberties first."""


@dataclass(frozen=True, slots=True)
class Floors:
    """Least values that one tier is served with; 0 leaves the user's own."""

    recompute_ratio: float = 0.0
    threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class TierRule:
    """How one tier is served at present.

    Attributes
    ----------
    epoch
        Number of the setting; what was observed under another epoch says nothing about this one.
    on_probation
        Whether the tier was switched off before and is being tried again: every request is audited.
    """

    floors: Floors = Floors()
    epoch: int = 0
    on_probation: bool = False


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The policy of one request.

    Attributes
    ----------
    policy
        The user's, without the tiers that are off and with the threshold raised. Its ratio is the user's still:
        :meth:`policy_for` raises it once the plan tells which tiers lend tokens.
    rules
        By approximate tier that is on.
    declined
        A sentence for each tier that is off.
    steers
        Whether an audit of this request may move the controller: not so for a policy of the call's own.
    """

    policy: ReusePolicy
    rules: Mapping[Tier, TierRule] = field(default_factory=dict)
    declined: tuple[str, ...] = ()
    steers: bool = False

    def policy_for(self, tiers: Collection[Tier]) -> ReusePolicy:
        """Return the policy for a plan that reuses ``tiers``: the highest ratio that one of them asks for."""
        floors = [rule.floors.recompute_ratio for tier, rule in self.rules.items() if tier in tiers]
        ratio = max([self.policy.recompute_ratio, *floors])
        return self.policy if ratio == self.policy.recompute_ratio else replace(self.policy, recompute_ratio=ratio)


def ladder(policy: ReusePolicy, tier: Tier) -> tuple[Floors, ...]:
    """Return the settings from the user's own to the strictest one short of off, in equal steps.

    The ratio ends at ``max_recompute_ratio``, the threshold of the ``similar`` tier one step before 1. A tier
    that neither can help (``repair`` is ``none``) has the user's setting only.
    """
    repairs = policy.repair != "none" and policy.max_recompute_ratio > policy.recompute_ratio
    nominates = tier is not Tier.EXACT and policy.threshold < 1.0
    if not (repairs or nominates):
        return (Floors(),)
    ratio_step = (policy.max_recompute_ratio - policy.recompute_ratio) / STEPS if repairs else 0.0
    threshold_step = (1.0 - policy.threshold) / (STEPS + 1) if nominates else 0.0
    above = [
        Floors(
            policy.recompute_ratio + i * ratio_step if repairs else 0.0,
            policy.threshold + i * threshold_step if nominates else 0.0,
        )
        for i in range(1, STEPS + 1)
    ]
    return (Floors(), *above)


def adjusted(
    policy: ReusePolicy, rules: Mapping[Tier, TierRule], off: Mapping[Tier, str], steers: bool
) -> EffectivePolicy:
    """Return the policy in effect; never looser than ``policy`` itself."""
    tiers = tuple(tier for tier in policy.tiers if tier not in off)
    rules = {tier: rule for tier, rule in rules.items() if tier in tiers}
    threshold = max([policy.threshold, *(rule.floors.threshold for rule in rules.values())])
    declined = tuple(reason for tier, reason in off.items() if tier in policy.tiers)
    if tiers != policy.tiers or threshold != policy.threshold:
        policy = replace(policy, tiers=tiers, threshold=threshold)
    return EffectivePolicy(policy, rules, declined, steers)


def loosest(tiers: Collection[Tier]) -> Tier | None:
    """Return the approximate tier that answers for a request that reused ``tiers``; None if it was lossless."""
    return next((tier for tier in LOOSEST_FIRST if tier in tiers), None)
