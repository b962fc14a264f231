"""The report tells what was reused, and counts every second and every recomputed token."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import StoppingCriteria, StoppingCriteriaList

from kvboost.policy import ReusePolicy
from kvboost.reuse import ReuseReport
from kvboost.runtime.control.counters import ReuseCounters
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.runtime.prepare.report import count_tiers, merge, tier_spans
from kvboost.types import Donor, Handover, Span, Tier
from tests.boosting import boosted, document, new_cache, prompt, settle, warm
from tests.faulty_cache import FaultyCache

A, B, C = (document(i) for i in (1, 2, 3))
REORDERED = prompt(C, B, A)
ARGUMENTS = {"do_sample": False, "max_new_tokens": 5}
REPAIRED = ReusePolicy(recompute_ratio=0.5, question_tokens=8)


@st.composite
def plans(draw):
    """Draw a plan, and reused positions that are recomputed."""
    length = draw(st.integers(1, 60))
    donor = Donor(1, tuple(range(60)), 0, b"", b"", True)
    pieces, at = [], 0
    while at < length - 1:
        end = draw(st.integers(at + 1, length - 1))
        tier = draw(st.sampled_from([Tier.PREFIX, Tier.EXACT, Tier.SIMILAR, None]))
        if tier is not None:
            pieces.append(ReuseSpan(Span(at, end), donor, 0, tier, draw(st.floats(0.5, 1.0))))
        at = end
    plan = Plan(length, tuple(pieces))
    reused = [t for p in pieces for t in range(p.target.start, p.target.end)]
    return plan, sorted(draw(st.sets(st.sampled_from(reused)))) if reused else []


@given(plans())
@settings(max_examples=80, deadline=None)
def test_spans_cover_the_prompt_and_recomputed_tokens_are_computed(drawn):
    plan, recomputed = drawn
    spans = tier_spans(plan, recomputed)
    assert [t for s in spans for t in range(s.span.start, s.span.end)] == list(range(plan.num_tokens))
    tiers = {t: s.tier for s in spans for t in range(s.span.start, s.span.end)}
    assert all(tiers[t] is Tier.COMPUTED for t in recomputed)
    counts = count_tiers(spans)
    assert set(counts) == set(Tier)
    assert sum(counts.values()) == plan.num_tokens
    assert counts[Tier.COMPUTED] == sum(len(s) for s in plan.compute) + len(recomputed)


@pytest.mark.parametrize("policy", [REPAIRED, ReusePolicy(repair="none"), ReusePolicy(tiers=("prefix",))])
def test_tokens_by_tier_sum_to_the_prompt(policy):
    with boosted(policy=policy) as model:
        warm(model, prompt(A, B, C))
        for ids in (REORDERED, prompt(A, C), prompt(document(9))):
            model.generate(ids, **ARGUMENTS)
            report = model.last_reuse
            assert sum(report.tokens_by_tier.values()) == report.prompt_tokens == ids.shape[1]
            assert report.reused_tokens == report.prompt_tokens - report.tokens_by_tier[Tier.COMPUTED]


def test_reuse_is_not_claimed_for_recomputed_tokens():
    with boosted() as model:
        warm(model, prompt(A, B, C))
        counts = {}
        for name, policy in (("none", ReusePolicy(repair="none")), ("query", REPAIRED)):
            model.generate(REORDERED, policy=policy, **ARGUMENTS)
            settle(model).preparer.cache.drop(model.kvboost_engine.preparer.namespace.key)
            model.kvboost_engine.preparer.cache.open(model.kvboost_engine.preparer.namespace)
            counts[name] = model.last_reuse
            warm(model, prompt(A, B, C))
        repaired, rotated = counts["query"], counts["none"]
        assert repaired.recomputed_tokens > 20
        assert repaired.reused_tokens == rotated.reused_tokens - repaired.recomputed_tokens
        assert repaired.recompute_ratio >= repaired.recomputed_tokens / rotated.reused_tokens
        assert repaired.recompute_ratio <= REPAIRED.recompute_ratio


def test_time_to_first_token_covers_lookup_hand_over_and_repair():
    cache = FaultyCache(new_cache())

    def slow(method):
        def call(*args):
            time.sleep(0.05)
            return method(*args)

        return call

    with boosted(cache=cache, policy=REPAIRED) as model:
        warm(model, prompt(A, B, C))
        cache.inner.match, cache.inner.fetch = slow(cache.inner.match), slow(cache.inner.fetch)
        model.generate(REORDERED, **ARGUMENTS)
        report = model.last_reuse
        assert report.stages_s["match"] >= 0.05
        assert report.stages_s["fetch"] >= 0.05
        assert report.ttft_s >= sum(report.stages_s.values()) >= 0.1
        assert set(report.stages_s) >= {"segment", "match", "plan", "fetch", "repair"}


def test_time_to_first_token_waits_for_what_is_stored_before():
    cache = FaultyCache(new_cache())
    put = cache.inner.put

    def slow(request):
        time.sleep(0.1)
        return put(request)

    with boosted(cache=cache) as model:
        cache.inner.put = slow
        model.generate(prompt(A), **ARGUMENTS)
        started = time.perf_counter()
        model.generate(prompt(B), **ARGUMENTS)
        assert model.last_reuse.ttft_s <= time.perf_counter() - started
        assert model.last_reuse.ttft_s >= 0.05


class Dawdle(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        time.sleep(0.03)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


@pytest.mark.parametrize("rows", [1, 2])
def test_time_to_first_token_ends_with_the_first_logits(rows):
    with boosted() as model:
        started = time.perf_counter()
        model.generate(prompt(A).repeat(rows, 1), stopping_criteria=StoppingCriteriaList([Dawdle()]), **ARGUMENTS)
        assert model.last_reuse.ttft_s <= time.perf_counter() - started - 5 * 0.03


def report(reused, computed, recomputed=0, ratio=0.0, **others):
    tiers = {**dict.fromkeys(Tier, 0), Tier.EXACT: reused, Tier.COMPUTED: computed}
    return ReuseReport(reused + computed, tiers, recomputed, ratio, **others)


def test_a_batch_is_the_sum_of_its_rows():
    rows = [
        report(60, 40, 20, 0.5, stages_s={"match": 1.0}, declined=("a", "b"), similarity=0.9, handover=Handover.FRAMES),
        report(0, 50, stages_s={"match": 2.0, "fetch": 1.0}, declined=("b",), fallback="broken"),
        report(9, 0, handover=Handover.SHARED_MEMORY),
    ]
    both = merge(rows, 7.0)
    assert both.prompt_tokens == 159
    assert both.tokens_by_tier == {**dict.fromkeys(Tier, 0), Tier.EXACT: 69, Tier.COMPUTED: 90}
    assert both.handover is Handover.FRAMES
    assert (both.recomputed_tokens, both.recompute_ratio, both.ttft_s) == (20, pytest.approx(40 / 89), 7.0)
    assert both.stages_s == {"match": 3.0, "fetch": 1.0}
    assert (both.declined, both.fallback, both.similarity) == (("a", "b"), "broken", 0.9)
    assert both.rows == tuple(rows)


def test_a_batch_without_reuse_has_no_recompute_ratio():
    assert merge([report(0, 5), report(0, 5)], 1.0).recompute_ratio == 0.0


def test_only_prefix_and_computed_tokens_are_called_lossless():
    assert report(0, 5).lossless
    assert not report(1, 5).lossless


def test_counters_add_up():
    counters = ReuseCounters()
    counters.count(report(60, 40, 20))
    counters.count(report(0, 50, fallback="broken"))
    found = counters.snapshot()
    assert (found["requests"], found["prompt_tokens"], found["fallbacks"]) == (2, 150, 1)
    assert (found["tokens_exact"], found["tokens_computed"], found["recomputed_tokens"]) == (60, 90, 20)
    found["requests"] = 0
    assert counters.snapshot()["requests"] == 2
