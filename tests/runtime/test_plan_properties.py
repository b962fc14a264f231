"""Whatever a cache answers, the plan covers the prompt once and lends only equal tokens."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.policy import REUSE_TIERS, ReusePolicy
from kvboost.runtime.plan.plan import Plan
from kvboost.runtime.plan.planner import build_plan
from kvboost.types import Donor, Match, Span, Tier

ALL = frozenset(Tier)
WORDS = [" water", " house", " green", " seven", " Paris", " not", ".", ","]
ids = st.integers(0, len(WORDS) - 1)


def decode(tokens):
    return "".join(WORDS[t] for t in tokens)


@st.composite
def cuts(draw, length, mean):
    """Cut ``[0, length)`` into spans of about ``mean`` tokens."""
    ends, at = [], 0
    while at < length:
        at = min(at + draw(st.integers(1, 2 * mean)), length)
        ends.append(at)
    return [Span(a, b) for a, b in pairwise([0, *ends])]


@st.composite
def edited(draw, tokens):
    """Draw ``tokens`` with a few of them changed, left out or put in."""
    tokens = list(tokens)
    for place, new in draw(st.lists(st.tuples(st.integers(0, len(tokens) - 1), st.lists(ids, max_size=2)), max_size=2)):
        tokens[place : place + 1] = new
    return tuple(tokens) or (0,)


@st.composite
def honest_matches(draw, prompt, max_nominees):
    """Draw what a faithful cache answers: disjoint targets, tiers that hold what they promise."""
    found = []
    moved = draw(st.integers(0, 40))
    for number, target in enumerate(draw(cuts(len(prompt), 8))):
        tokens = tuple(prompt[target.start : target.end])
        chain = (bytes([number]), bytes([number + 1]))
        # One sequence that goes on, or another one.
        start = target.start + moved if draw(st.booleans()) else draw(st.integers(0, 50))
        kind = draw(st.sampled_from([Tier.PREFIX, Tier.EXACT, Tier.EXACT, Tier.SIMILAR, Tier.SIMILAR, "miss"]))
        if kind is Tier.PREFIX:
            found.append(Match(target, Donor(number, tokens, target.start, *chain, True), Span(0, len(tokens)), kind))
        elif kind is Tier.EXACT:
            exact = draw(st.booleans())
            found.append(Match(target, Donor(number, tokens, start, *chain, exact), Span(0, len(tokens)), kind))
        elif kind is Tier.SIMILAR:
            for i, similarity in enumerate(
                sorted(draw(st.sets(st.floats(0.5, 1.0), min_size=1, max_size=max_nominees)))[::-1]
            ):
                donor = Donor(100 * i + number, draw(edited(tokens)), start, *chain, draw(st.booleans()))
                found.append(Match(target, donor, Span(0, len(donor.token_ids)), kind, similarity))
    return found


@st.composite
def tampered(draw, match):
    """Draw a match that lies in one place."""
    span = st.builds(lambda a, n: Span(a, a + n), st.integers(0, 80), st.integers(1, 30))
    field = draw(st.sampled_from(["target", "donor_span", "tier", "ids", "start", "exact", "similarity"]))
    if field == "ids":
        return replace(match, donor=replace(match.donor, token_ids=draw(edited(match.donor.token_ids))))
    if field == "start":
        return replace(match, donor=replace(match.donor, start=draw(st.integers(0, 80))))
    if field == "exact":
        return replace(match, donor=replace(match.donor, exact=not match.donor.exact))
    value = {"tier": st.sampled_from(list(Tier)), "similarity": st.floats(0.0, 1.0)}.get(field, span)
    return replace(match, **{field: draw(value)})


@st.composite
def honest(draw, max_nominees=3):
    prompt = draw(st.one_of(st.lists(ids, min_size=24, max_size=60), st.lists(ids, min_size=1, max_size=60)))
    return prompt, draw(honest_matches(prompt, max_nominees)), draw(cuts(len(prompt), 3))


@st.composite
def wild(draw):
    prompt, matches, sentences = draw(honest())
    matches = [draw(tampered(m)) if draw(st.booleans()) else m for m in matches]
    return prompt, draw(st.permutations(matches)), sentences


policies = st.builds(
    ReusePolicy,
    tiers=st.one_of(st.just(REUSE_TIERS), st.lists(st.sampled_from(REUSE_TIERS))),
    threshold=st.floats(0.4, 1.0),
    min_span=st.integers(1, 8),
)
scenes = st.one_of(wild(), honest())


def tokens_of(plan: Plan) -> list[int]:
    return [t for piece in plan.reuse for t in range(piece.target.start, piece.target.end)]


@given(scenes, policies)
@settings(max_examples=80, deadline=None)
def test_reuse_and_compute_cover_the_prompt_exactly_once(scene, policy):
    plan = build_plan(*scene, policy, ALL, decode)
    spans_ = sorted([piece.target for piece in plan.reuse] + list(plan.compute))
    assert [t for s in spans_ for t in range(s.start, s.end)] == list(range(len(scene[0])))


@given(scenes, policies)
@settings(max_examples=80, deadline=None)
def test_no_token_is_reused_whose_id_differs(scene, policy):
    prompt = scene[0]
    for piece in build_plan(*scene, policy, ALL, decode).reuse:
        lent = piece.donor.token_ids[piece.offset : piece.offset + len(piece.target)]
        assert list(lent) == prompt[piece.target.start : piece.target.end]


@given(scenes, policies)
@settings(max_examples=40, deadline=None)
def test_the_last_token_is_always_computed(scene, policy):
    plan = build_plan(*scene, policy, ALL, decode)
    assert len(scene[0]) - 1 not in tokens_of(plan)
    assert plan.tail_start < len(scene[0])


@given(scenes, policies, st.sets(st.sampled_from(list(Tier))))
@settings(max_examples=40, deadline=None)
def test_only_allowed_and_supported_tiers_are_reused(scene, policy, tiers):
    plan = build_plan(*scene, policy, tiers, decode)
    assert {piece.tier for piece in plan.reuse} <= set(policy.tiers) & tiers


@given(scenes, policies)
@settings(max_examples=40, deadline=None)
def test_a_nominee_below_the_threshold_lends_nothing(scene, policy):
    for piece in build_plan(*scene, policy, ALL, decode).reuse:
        assert piece.tier is not Tier.SIMILAR or piece.similarity >= policy.threshold


@given(scenes, policies)
@settings(max_examples=80, deadline=None)
def test_runs_hold_the_reused_tokens_and_merge_as_far_as_they_can(scene, policy):
    plan = build_plan(*scene, policy, ALL, decode)
    runs = plan.runs
    assert [t for run in runs for t in range(run.span.start, run.span.end)] == tokens_of(plan)
    by_start = {piece.target.start: piece for piece in plan.reuse}
    by_end = {piece.target.end: piece for piece in plan.reuse}
    for left, right in pairwise(runs):
        before, after = by_end[left.span.end], by_start[right.span.start]
        one_sequence = (
            before.donor.chunk_id == after.donor.chunk_id or before.donor.prefix_hash == after.donor.parent_hash
        )
        touching = left.span.end == right.span.start and left.shift == right.shift
        assert not (touching and one_sequence and left.lossless == right.lossless)


@given(scenes, policies)
@settings(max_examples=80, deadline=None)
def test_a_run_has_one_shift_and_one_donor_sequence(scene, policy):
    plan = build_plan(*scene, policy, ALL, decode)
    for run in plan.runs:
        inside = [p for p in plan.reuse if run.span.start <= p.target.start < run.span.end]
        assert {p.shift for p in inside} == {run.shift}
        assert {p.tier is Tier.PREFIX for p in inside} == {run.lossless}
        for a, b in pairwise(inside):
            assert a.donor.chunk_id == b.donor.chunk_id or a.donor.prefix_hash == b.donor.parent_hash


@given(scenes, policies)
@settings(max_examples=40, deadline=None)
def test_approximate_runs_are_at_least_min_span_long(scene, policy):
    for run in build_plan(*scene, policy, ALL, decode).runs:
        assert run.lossless or len(run.span) >= policy.min_span


@given(scenes, policies, st.sets(st.integers(1, 5)))
@settings(max_examples=40, deadline=None)
def test_without_a_donor_its_spans_are_computed(scene, policy, missing):
    plan = build_plan(*scene, policy, ALL, decode)
    rest = plan.without(missing, "gone")
    assert rest.reuse == tuple(p for p in plan.reuse if p.donor.chunk_id not in missing)
    assert rest.declined[-1] == "gone"
    assert not set(rest.chunk_ids()) & missing


@given(scenes, policies)
@settings(max_examples=40, deadline=None)
def test_a_lossless_plan_holds_prefix_spans_that_stand_where_they_stood(scene, policy):
    plan = build_plan(*scene, policy, ALL, decode).lossless_only()
    assert plan.lossless
    assert plan.approximate_from is None
    assert all(p.tier is Tier.PREFIX and p.shift == 0 and p.donor.exact for p in plan.reuse)


@given(honest(max_nominees=1), policies, st.floats(0.4, 1.0), st.floats(0.4, 1.0))
@settings(max_examples=80, deadline=None)
def test_raising_the_threshold_never_raises_reuse(scene, policy, one, two):
    """With several nominees a chunk may take another one, whose changed fact costs its neighbours a sentence."""
    low, high = sorted((one, two))
    # Whole runs are never short; only a short chunk may hang on which nominee its neighbour takes.
    policy = replace(policy, min_span=1)
    loose = build_plan(*scene, replace(policy, threshold=low), ALL, decode)
    strict = build_plan(*scene, replace(policy, threshold=high), ALL, decode)
    assert len(tokens_of(strict)) <= len(tokens_of(loose))
