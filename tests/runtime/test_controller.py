"""The controller on simulated audits: bad tiers go, harmless ones stay, nothing swings for ever.

Seeds are fixed; the margins are such that fresh ones would fail less than once in a million runs.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.errors import PolicyError
from kvboost.policy import ReusePolicy
from kvboost.runtime.control.confidence import rate_bounds, surely_above, surely_below
from kvboost.runtime.control.controller import Controller
from kvboost.runtime.control.effective_policy import STEPS, EffectivePolicy, ladder
from kvboost.types import Tier

POLICY = ReusePolicy()
Rate = Callable[[EffectivePolicy], float]


def simulate(controller: Controller, audits: int, rate: Rate | float, seed: int, tier: Tier = Tier.EXACT) -> list[int]:
    """Audit ``audits`` requests that reuse ``tier``; return the level after each, -1 for off."""
    draw = random.Random(seed)
    levels = []
    for _ in range(audits):
        effective = controller.admit(POLICY)
        if tier in effective.rules:
            p = rate(effective) if callable(rate) else rate
            controller.observe(tier, effective.rules[tier].epoch, draw.random() < p)
        status = controller.status()[tier]
        levels.append(-1 if status.off else status.level)
    return levels


def changes(levels: list[int]) -> int:
    return sum(a != b for a, b in itertools.pairwise(levels))


# ---------------------------------------------------------------------------------------------- the bounds


@given(st.integers(0, 400), st.integers(0, 400), st.floats(0.5, 0.999), st.floats(0.001, 0.999))
def test_bounds_enclose_the_observed_share_and_widen_with_confidence(
    hits: int, misses: int, sure: float, rate: float
) -> None:
    n = hits + misses
    low, high = rate_bounds(hits, n, sure)
    assert 0.0 <= low <= (hits / n if n else 0.0)
    assert (hits / n if n else 1.0) <= high <= 1.0
    lower, higher = rate_bounds(hits, n, 0.9995)
    assert lower <= low
    assert high <= higher
    if min(abs(low - rate), abs(high - rate)) > 1e-9:
        assert surely_above(rate, hits, n, sure) == (low > rate)
        assert surely_below(rate, hits, n, sure) == (high < rate)
    mirrored = rate_bounds(misses, n, sure)
    assert mirrored == pytest.approx((1.0 - high, 1.0 - low), abs=1e-9)


def test_bounds_hold_at_all_times_together() -> None:
    """Looked at after each of 400 observations, they miss the rate at any time in at most 1 of 20 runs (Ville)."""
    runs, missed = 400, 0
    for seed in range(runs):
        draw = random.Random(seed)
        hits, wrong = 0, False
        for n in range(1, 401):
            hits += draw.random() < 0.05
            wrong = wrong or surely_above(0.05, hits, n, 0.95) or surely_below(0.05, hits, n, 0.95)
        missed += wrong
    # Binomial(400, .05) exceeds 42 less than once in a million.
    assert missed <= 42
    assert missed > 0  # bounds that nothing escapes would be of no use


def test_bounds_narrow_around_the_rate() -> None:
    low, high = rate_bounds(500, 10_000, 0.95)
    assert 0.04 < low < 0.05 < high < 0.06
    assert rate_bounds(0, 115, 0.95)[1] > 0.05 >= rate_bounds(0, 116, 0.95)[1]


# ------------------------------------------------------------------------------------------- the controller


def test_a_harmless_workload_stays_at_the_users_setting() -> None:
    """At a violation share of .005 under a bound of .05, hardly any of 100 runs of 1,000 audits is touched."""
    touched = sum(max(simulate(Controller(POLICY), 1_000, 0.005, seed)) > 0 for seed in range(100))
    # An alarm needs 2 violations in the first 3 audits or the like: about 1 run in 5,000.
    assert touched <= 3


def test_no_violation_never_touches_anything() -> None:
    controller = Controller(POLICY)
    assert set(simulate(controller, 3_000, 0.0, 0)) == {0}
    effective = controller.admit(POLICY)
    assert effective.policy is POLICY
    assert effective.policy_for({Tier.EXACT, Tier.SIMILAR}) is POLICY
    assert effective.declined == ()


def test_a_bad_tier_is_off_within_few_audits(caplog: pytest.LogCaptureFixture) -> None:
    controller = Controller(POLICY)
    with caplog.at_level(logging.WARNING):
        levels = simulate(controller, 2 * (STEPS + 1), 1.0, 0)
    assert levels[-1] == -1
    assert -1 not in levels[:-1]
    effective = controller.admit(POLICY)
    assert effective.policy.tiers == (Tier.PREFIX, Tier.SIMILAR)
    assert [reason.split(":")[0] for reason in effective.declined] == ["tier 'exact' switched off by the audit"]
    assert len(caplog.records) == 1
    assert "tried again after 1000 requests" in caplog.messages[0]
    assert controller.status()[Tier.SIMILAR].off is False


def test_a_tier_that_turns_bad_after_a_long_good_time_is_off_soon() -> None:
    controller = Controller(POLICY)
    simulate(controller, 5_000, 0.0, 0)
    levels = simulate(controller, 40, 1.0, 1)
    assert levels[-1] == -1


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.6])
def test_a_share_above_the_bound_ends_switched_off(rate: float) -> None:
    for seed in range(10):
        assert -1 in simulate(Controller(POLICY), 1_500, rate, seed)


def test_a_share_slightly_above_the_bound_is_found_in_the_end() -> None:
    """All audits since the last change count: 7 in every 100 are too few for the newest 200 alone to tell from 5."""
    controller = Controller(POLICY)
    for i in range(4_000):
        controller.observe(Tier.EXACT, 0, i % 100 in range(14, 100, 14))
        if controller.status()[Tier.EXACT].level:
            break
    assert 1_000 < i < 3_999


def ratio_helps(effective: EffectivePolicy) -> float:
    """Too many violations at the user's ratio, next to none above it."""
    return 0.2 if effective.policy_for({Tier.EXACT}).recompute_ratio <= POLICY.recompute_ratio else 0.004


def test_a_higher_ratio_that_helps_is_kept_and_does_not_swing() -> None:
    for seed in range(4):
        levels = simulate(Controller(POLICY), 20_000, ratio_helps, seed)
        assert -1 not in levels
        assert max(levels) <= 2
        # Each failed step down doubles the wait for the next: 200, 400, ... 12,800 audits.
        assert changes(levels) <= 2 * 8 + 2
        bad = sum(level == 0 for level in levels)
        assert bad < 0.05 * len(levels)


def test_the_ratio_comes_down_again_when_the_workload_does() -> None:
    controller = Controller(POLICY)
    assert max(simulate(controller, 400, ratio_helps, 1)) == 1
    assert simulate(controller, 1_000, 0.0, 2)[-1] == 0


def test_a_tier_that_is_off_is_tried_again_and_waits_longer_each_time() -> None:
    controller = Controller(POLICY, cool_down_requests=50)
    levels = simulate(controller, 2_000, 1.0, 0)
    starts = [i for i in range(1, len(levels)) if levels[i - 1] == -1 and levels[i] != -1]
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert len(starts) >= 4
    assert all(b > 1.8 * a for a, b in itertools.pairwise(gaps))
    # Of the tries, two audits each are served.
    assert sum(level != -1 for level in levels) <= 2 * (STEPS + 1) + 2 * len(starts)


def test_a_tier_that_recovers_comes_back_down_to_the_users_setting() -> None:
    controller = Controller(POLICY, cool_down_requests=50)
    assert simulate(controller, 20, 1.0, 0)[-1] == -1
    rules = []
    for _ in range(60):
        rules.append(controller.admit(POLICY).rules.get(Tier.EXACT))
    assert rules[0] is None
    assert rules[-1] is not None
    assert rules[-1].on_probation
    assert simulate(controller, 200, 0.0, 1)[-1] >= 0
    assert not controller.status()[Tier.EXACT].on_probation
    assert simulate(controller, 1_000, 0.0, 2)[-1] == 0


def test_tiers_are_judged_apart() -> None:
    controller = Controller(POLICY)
    for _ in range(20):
        effective = controller.admit(POLICY)
        for tier, violated in ((Tier.EXACT, False), (Tier.SIMILAR, True)):
            if tier in effective.rules:
                controller.observe(tier, effective.rules[tier].epoch, violated)
    status = controller.status()
    assert status[Tier.SIMILAR].off
    assert status[Tier.EXACT].level == 0
    assert status[Tier.EXACT].audits == 20


def test_audits_of_an_older_setting_do_not_count() -> None:
    controller = Controller(POLICY)
    epoch = controller.admit(POLICY).rules[Tier.EXACT].epoch
    for _ in range(50):
        controller.observe(Tier.EXACT, epoch, True)
    assert controller.status()[Tier.EXACT].level == 1


def test_a_policy_of_the_calls_own_does_not_steer() -> None:
    controller = Controller(POLICY)
    assert controller.admit(POLICY).steers
    assert not controller.admit(replace(POLICY, recompute_ratio=0.0)).steers


# ------------------------------------------------------------------------------------------------ the ladder

policies = st.builds(
    ReusePolicy,
    threshold=st.floats(0, 1),
    recompute_ratio=st.floats(0, 1),
    max_recompute_ratio=st.floats(0, 1),
    repair=st.sampled_from(["none", "query"]),
)


@given(policies, st.sampled_from([Tier.EXACT, Tier.SIMILAR]))
def test_a_ladder_climbs_in_bounded_steps_within_the_policys_limits(policy: ReusePolicy, tier: Tier) -> None:
    steps = ladder(policy, tier)
    ratios = [max(s.recompute_ratio, policy.recompute_ratio) for s in steps]
    thresholds = [max(s.threshold, policy.threshold) for s in steps]
    assert len(steps) in (1, STEPS + 1)
    assert ratios == sorted(ratios)
    assert thresholds == sorted(thresholds)
    assert ratios[-1] <= max(policy.recompute_ratio, policy.max_recompute_ratio) + 1e-12
    assert thresholds[-1] <= 1.0
    if tier is Tier.EXACT:
        assert set(thresholds) == {policy.threshold}
    if policy.repair == "none":
        assert set(ratios) == {policy.recompute_ratio}
    room = max(policy.max_recompute_ratio - policy.recompute_ratio, 0.0)
    assert all(b - a <= room / STEPS + 1e-9 for a, b in itertools.pairwise(ratios))


@given(policies, policies, st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_a_ruling_is_never_looser_than_the_users_policy(
    own: ReusePolicy, call: ReusePolicy, audits: list[tuple[bool, bool]]
) -> None:
    controller = Controller(own)
    for exact, violated in audits:
        tier = Tier.EXACT if exact else Tier.SIMILAR
        for policy in (own, call):
            effective = controller.admit(policy)
            assert set(effective.policy.tiers) <= set(policy.tiers)
            assert effective.policy.threshold >= policy.threshold
            assert effective.policy_for(effective.policy.tiers).recompute_ratio >= policy.recompute_ratio
            if tier in effective.rules:
                controller.observe(tier, effective.rules[tier].epoch, violated)


def test_a_plan_takes_the_ratio_of_the_strictest_of_its_tiers() -> None:
    controller = Controller(POLICY)
    for _ in range(2):
        controller.observe(Tier.SIMILAR, 0, True)
    effective = controller.admit(POLICY)
    raised = POLICY.recompute_ratio + (POLICY.max_recompute_ratio - POLICY.recompute_ratio) / STEPS
    assert effective.policy.threshold == pytest.approx(POLICY.threshold + (1.0 - POLICY.threshold) / (STEPS + 1))
    assert effective.policy_for({Tier.EXACT}).recompute_ratio == POLICY.recompute_ratio
    assert effective.policy_for({Tier.EXACT, Tier.SIMILAR}).recompute_ratio == pytest.approx(raised)


# ------------------------------------------------------------------------------------------- the policy fields


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("audit_rate", [0, 0.5, 1], [-0.1, 1.1, math.nan, True, "0.5"]),
        ("max_kl", [1e-6, 1, 50.0], [0, -1.0, math.inf, math.nan, True, None]),
        ("max_violation_rate", [0.001, 0.5, 0.999], [0.0, 0.0009, 1.0, 1, math.nan]),
        ("audit_confidence", [0.5, 0.999], [0.49, 1.0, 1, math.nan]),
        ("max_recompute_ratio", [0, 0.05, 1], [-0.1, 1.5, math.nan]),
    ],
)
def test_audit_fields_are_checked_by_name(field: str, good: list[float], bad: list[object]) -> None:
    for value in good:
        assert getattr(ReusePolicy(**{field: value}), field) == float(value)
        Controller(ReusePolicy(**{field: value})).admit(POLICY)
    for value in bad:
        with pytest.raises(PolicyError, match=f"^{field} .* must be "):
            ReusePolicy(**{field: value})  # type: ignore[arg-type]
