"""Hits that cost more than they save are declined, by a wide margin, and never before the costs are known."""

import time
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kvboost.policy import REPAIRS, ReusePolicy
from kvboost.reuse import ReuseReport
from kvboost.runtime.cost.calibrate import Calibration
from kvboost.runtime.cost.cost_gate import LEAST_LOSS_S, TRIED_AGAIN, Costs, judge
from kvboost.runtime.cost.estimate import Estimator
from kvboost.runtime.cost.meter import LEAST, FetchCost
from kvboost.runtime.cost.model import CostModel, TimedPass
from kvboost.runtime.model.support import APPROXIMATE, ModelSupport
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.types import Donor, Handover, KVLayout, Span, Tier
from tests.boosting import GREEDY, boosted, document, new_cache, plain, prompt, reused, settle, warm
from tests.faulty_cache import FaultyCache

LAYOUT = KVLayout(30, 3, 64, 64, "float32")
SUPPORT = ModelSupport(LAYOUT, (None,) * 30, frozenset(Tier) - {Tier.COMPUTED})
MODEL = CostModel(0.05, 0.004, 1e-6, 1e-10, 4e-10)
CALIBRATION = Calibration(
    tuple(TimedPass(n, c, MODEL.forward_s(n, c)) for n, c in [(8, 0), (64, 0), (64, 2048)]), 1e-10, 4e-10
)
NEAR, FAR = FetchCost(0.0002, 3e-10), FetchCost(30.0, 3e-10)
POLICY = ReusePolicy()


def span(start, end, tier=Tier.EXACT, donor_tokens=None, donor=0, shift=0):
    count = donor_tokens or end - start
    at = Donor(donor or start + 1, tuple(range(count)), max(start - shift, 0), bytes([0]), bytes([1]), True)
    return ReuseSpan(Span(start, end), at, 0, tier)


@st.composite
def plans(draw):
    """Draw a plan of runs, lossless ones first, with gaps, and donors larger than what they lend."""
    at, pieces = 0, []
    lossless = draw(st.booleans())
    for _ in range(draw(st.integers(1, 8))):
        at += draw(st.sampled_from([0, 0, 3, 200]))
        length = draw(st.integers(1, 600))
        lossless = lossless and draw(st.booleans())
        tier = Tier.PREFIX if lossless else draw(st.sampled_from([Tier.EXACT, Tier.SIMILAR, Tier.SUBSTITUTE]))
        extra = draw(st.integers(0, 300))
        shift = 0 if lossless else draw(st.sampled_from([0, 5]))
        pieces.append(span(at, at + length, tier, length + extra, shift=shift))
        at += length
    return Plan(at + draw(st.integers(1, 400)), tuple(pieces), ("said before",))


few = st.floats(0.0, 1e-2)
models = st.builds(CostModel, st.floats(0.0, 1.0), st.floats(1e-7, 1e-2), st.floats(0.0, 1e-5), few, few)
fetches = st.builds(FetchCost, st.floats(0.0, 10.0), st.floats(0.0, 1e-5))
rates = st.builds(Estimator, models, fetches, st.just(LAYOUT))
policies = st.builds(ReusePolicy, repair=st.sampled_from(REPAIRS), recompute_ratio=st.floats(0.0, 1.0))


@given(plans(), policies, rates, st.booleans())
def test_the_plan_afterwards_is_a_part_of_the_plan_before(plan, policy, known, gaps):
    verdict = judge(plan, policy, known, gaps)
    assert set(verdict.plan.reuse) <= set(plan.reuse)
    assert (verdict.plan.num_tokens, verdict.plan.declined) == (plan.num_tokens, plan.declined)
    assert (verdict.reason is None) == (verdict.plan is plan)
    covered = [*(p.target for p in verdict.plan.reuse), *verdict.plan.compute]
    assert sum(len(s) for s in covered) == plan.num_tokens
    if not gaps and verdict.reason is not None:
        assert verdict.plan == verdict.plan.leading()


@given(plans(), policies, rates)
def test_whatever_is_chosen_is_estimated_to_be_faster(plan, policy, known):
    chosen = judge(plan, policy, known).plan
    if chosen is not plan:
        cost = known.reuse_s(chosen, policy) if chosen.reuse else known.full_s(plan)
        assert known.reuse_s(plan, policy) >= (cost + LEAST_LOSS_S) * (1 - 1e-9)


@given(plans(), policies, rates, st.floats(1.0, 100.0))
def test_a_slower_cache_never_looks_cheaper(plan, policy, known, factor):
    slower = FetchCost(known.fetch.round_trip_s * factor, known.fetch.byte_s * factor)
    assert replace(known, fetch=slower).reuse_s(plan, policy) >= known.reuse_s(plan, policy)


@given(plans(), rates, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_more_repair_never_looks_cheaper(plan, known, one, other):
    less, more = sorted([one, other])
    few, many = ReusePolicy(recompute_ratio=less), ReusePolicy(recompute_ratio=more)
    assert known.reuse_s(plan, many) >= known.reuse_s(plan, few) * (1 - 1e-9)


@given(plans(), rates)
def test_free_fetching_is_always_worth_it(plan, known):
    free = Estimator(replace(known.model, copy_byte_s=0.0, rotate_byte_s=0.0), FetchCost(0.0, 0.0), LAYOUT)
    assert judge(plan, ReusePolicy(repair="none"), free).plan is plan


@given(plans(), models)
def test_a_cache_that_takes_for_ever_is_never_worth_it(plan, model):
    assume(model.forward_s(plan.num_tokens) < 1e5)
    assert judge(plan, POLICY, Estimator(model, FetchCost(1e6, 0.0), LAYOUT)).plan.reuse == ()


def test_a_long_prefix_from_a_near_cache_survives_estimates_that_are_wrong_by_far():
    plan = Plan(8192, (span(0, 8100, Tier.PREFIX),))
    for wrong in (0.1, 10.0):
        rough = replace(MODEL, token_s=MODEL.token_s * wrong, pair_s=MODEL.pair_s * wrong)
        slow = FetchCost(NEAR.round_trip_s * 10, NEAR.byte_s * 10)
        assert judge(plan, POLICY, Estimator(rough, slow, LAYOUT)).reason is None


def test_runs_whose_donors_are_much_longer_are_computed_instead():
    # At 50 MB/s a token takes 1 ms: worth it for a whole donor, not where a tenth of a donor is used.
    far = FetchCost(0.01, 1 / 50e6)
    good = span(0, 600)
    bad = [span(700 + 100 * i, 708 + 100 * i, donor_tokens=200) for i in range(5)]
    verdict = judge(Plan(1400, (good, *bad)), POLICY, Estimator(MODEL, far, LAYOUT))
    assert verdict.plan.reuse == (good,)
    assert verdict.reason is not None
    assert "40 tokens in 5 of 6 runs" in verdict.reason


def test_a_loss_that_nobody_notices_is_let_be():
    tiny = CostModel(0.0, 1e-6, 0.0, 1e-10, 1e-10)
    plan = Plan(100, (span(0, 90),))
    assert judge(plan, POLICY, Estimator(tiny, FetchCost(LEAST_LOSS_S * 0.9, 0.0), LAYOUT)).reason is None
    assert judge(plan, POLICY, Estimator(tiny, FetchCost(LEAST_LOSS_S * 1.1, 0.0), LAYOUT)).reason is not None


PLAN = Plan(1000, (span(0, 900, Tier.PREFIX),))


def costs(fetch=FAR, times=LEAST, **settings):
    made = Costs(SUPPORT, **{"calibration": CALIBRATION, **settings})
    for _ in range(times):
        made.meter.observe(Handover.FRAMES, fetch.round_trip_s, 0, fetch.byte_s * 1e6, 10**6)
    return made


def test_a_hit_is_declined_with_the_reason_and_counted():
    known = costs()
    plan = known.weigh(PLAN, POLICY, Handover.FRAMES)
    assert plan.reuse == ()
    (reason,) = plan.declined
    assert reason.startswith("not worth it: reusing 900 tokens would take 30.")
    assert known.counters.snapshot() == {"declined_hits": 1, "declined_tokens": 900}


@pytest.mark.parametrize(
    ("known", "policy", "path"),
    [
        (costs(NEAR), POLICY, Handover.FRAMES),
        (costs(), ReusePolicy(worth_it=False), Handover.FRAMES),
        (costs(), POLICY, Handover.IN_PROCESS),
        (costs(times=LEAST - 1), POLICY, Handover.FRAMES),
        (costs(calibration=None), POLICY, Handover.FRAMES),
        (costs(calibration=replace(CALIBRATION, passes=CALIBRATION.passes[:1])), POLICY, Handover.FRAMES),
    ],
    ids=["near", "switched off", "another way", "not timed", "not calibrated", "one length only"],
)
def test_nothing_is_declined(known, policy, path):
    assert known.weigh(PLAN, policy, path) is PLAN
    assert known.counters.snapshot() == {}


def test_now_and_then_a_declined_hit_is_taken_to_time_the_cache_again():
    known = costs()
    taken = [known.weigh(PLAN, POLICY, Handover.FRAMES) is PLAN for _ in range(3 * TRIED_AGAIN)]
    assert [i for i, was in enumerate(taken, 1) if was] == [TRIED_AGAIN, 2 * TRIED_AGAIN, 3 * TRIED_AGAIN]


def test_a_cache_that_recovered_is_used_again():
    known = costs()
    assert known.weigh(PLAN, POLICY, Handover.FRAMES).reuse == ()
    for _ in range(5):
        known.meter.observe(Handover.FRAMES, NEAR.round_trip_s, 0, NEAR.byte_s * 1e6, 10**6)
    assert known.weigh(PLAN, POLICY, Handover.FRAMES) is PLAN


def test_a_model_without_gaps_keeps_a_leading_part_only():
    narrow = replace(SUPPORT, tiers=SUPPORT.tiers - APPROXIMATE)
    plan = Plan(1400, (span(0, 8, Tier.PREFIX, 4000), span(8, 1300, Tier.PREFIX, shift=0)))
    far = FetchCost(0.0, 1 / 50e6)
    known = Costs(narrow, CALIBRATION)
    for _ in range(LEAST):
        known.meter.observe(Handover.FRAMES, far.round_trip_s, 0, far.byte_s * 1e6, 10**6)
    chosen = known.weigh(plan, POLICY, Handover.FRAMES)
    assert chosen.reuse in (plan.reuse, ())


def report(prompt_tokens, reused_tokens, **stages_s):
    tiers = {Tier.PREFIX: reused_tokens, Tier.COMPUTED: prompt_tokens - reused_tokens}
    return ReuseReport(prompt_tokens, tiers, stages_s=stages_s)


def test_requests_correct_the_calibration():
    known = costs()
    before = known.model.forward_s(2000)
    for _ in range(10):
        known.observe(report(2000, 0), before / 2)
    assert known.model.forward_s(2000) == pytest.approx(before / 2, rel=0.2)


def test_where_passes_cannot_be_timed_nothing_is_learnt():
    known = costs(learns=False)
    known.observe(report(2000, 0), 1e-6)
    assert known.model == CALIBRATION.model()


def test_the_seconds_saved_are_those_of_prefill_less_fetch_and_repair():
    known = costs()
    priced = known.priced(report(1000, 900, fetch=0.25, repair=0.5, match=9.0))
    assert priced.saved_s == pytest.approx(MODEL.forward_s(1000) - MODEL.forward_s(100, 900) - 0.75, rel=1e-3)
    assert known.priced(report(1000, 0, fetch=0.0)).saved_s == 0.0
    assert costs(calibration=None).priced(report(1000, 900)).saved_s is None


def test_a_batch_saves_what_its_rows_save():
    known = costs()
    rows = (report(1000, 900), report(500, 0))
    priced = known.priced(replace(report(1500, 900), rows=rows))
    assert priced.saved_s == pytest.approx(known.priced(rows[0]).saved_s)
    assert [row.saved_s for row in priced.rows] == [priced.saved_s, 0.0]


@pytest.fixture
def calibration(monkeypatch):
    monkeypatch.setattr("kvboost.api.calibrated", lambda *args: CALIBRATION)


DOCUMENTS = [document(seed) for seed in range(4)]
ORDERS = [(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0), (1, 2, 3, 0)]
PROMPTS = [prompt(*(DOCUMENTS[i] for i in order)) for order in ORDERS]


def test_a_slow_cache_is_declined_and_the_answer_is_full_prefills(calibration):
    slow = FaultyCache(new_cache())
    with boosted(cache=slow) as model:
        warm(model, PROMPTS[0])

        def late(chunk):
            time.sleep(0.15)
            return chunk

        slow.on_fetch = late
        for ids in PROMPTS[1 : 1 + LEAST]:
            model.generate(ids, **GREEDY)
            assert reused(model, Tier.EXACT) > 0
            settle(model)
        fetches = slow.calls.count("fetch")
        answer = model.generate(PROMPTS[-1], **GREEDY)
        assert torch.equal(answer, plain(model, PROMPTS[-1], **GREEDY))
        assert model.last_reuse.reused_tokens == 0
        assert any(reason.startswith("not worth it: ") for reason in model.last_reuse.declined)
        assert slow.calls.count("fetch") == fetches
        assert model.kvboost_engine.counters.snapshot()["declined_hits"] == 1

        allowed = model.generate(PROMPTS[-1], policy=ReusePolicy(worth_it=False), **GREEDY)
        assert allowed.shape[1] > PROMPTS[-1].shape[1]
        assert model.last_reuse.reused_tokens > 0


def test_a_fast_cache_is_not_declined(calibration):
    with boosted() as model:
        warm(model, PROMPTS[0])
        for ids in PROMPTS[1:] + PROMPTS[:1]:
            model.generate(ids, **GREEDY)
            settle(model)
            assert model.last_reuse.reused_tokens > 0
            assert not any("worth it" in reason for reason in model.last_reuse.declined)
        assert model.kvboost_engine.preparer.costs.meter.cost(Handover.IN_PROCESS) is not None
        assert "declined_hits" not in model.kvboost_engine.counters.snapshot()


def test_reports_tell_the_seconds_saved(calibration):
    with boosted() as model:
        model.generate(PROMPTS[0], **GREEDY)
        assert model.last_reuse.saved_s == 0.0
        settle(model)
        model.generate(PROMPTS[0], **GREEDY)
        assert model.last_reuse.saved_s != 0.0
