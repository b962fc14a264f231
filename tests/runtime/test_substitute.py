"""Another wording stands in for a chunk: only if asked for, only with the same facts, and the report says so."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.api import boost, unboost
from kvboost.index import LocalCache
from kvboost.policy import DEFAULT_TIERS, REUSE_TIERS, ReusePolicy
from kvboost.runtime.plan.facts import changes_fact, languages_of
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.runtime.plan.planner import build_plan
from kvboost.runtime.plan.substitute import tokens_standing_in
from kvboost.types import Donor, Match, Span, Tier
from tests.fakes import NgramEmbedder
from tests.tiny_models import tiny_model, tiny_tokenizer

WORDS = [" water", " house", " green", " quick", " Paris", " not", " 7", "."]
ids = st.lists(st.integers(0, len(WORDS) - 1), min_size=1, max_size=12).map(tuple)


def decode(tokens):
    return "".join(WORDS[t] for t in tokens)


def decode_words(words):
    return " ".join(words)


@pytest.mark.parametrize(
    ("donor", "target", "expected"),
    [
        ("the big house near the sea", "the large building by the water", 6),
        ("a big house", "the large building by the water", 3),
        ("the big house that stands near the sea", "the large building there", 4),
        ("the house has 3 doors", "the building has 4 doors", 0),
        ("the house is green", "the building is not green", 0),
        ("Alice likes the house", "Bob likes the house", 0),
        # Both name Paris, but the donor's would be cut off.
        ("the big house stands in Paris", "the Paris building", 0),
        ("the Paris house stands there", "the Paris building", 3),
    ],
)
def test_how_many_tokens_stand_in(donor, target, expected):
    assert tokens_standing_in(donor.split(), target.split(), decode_words) == expected


@st.composite
def scenes(draw):
    """Return a prompt of whole chunks, nominees for some of them or for their rest, and a policy."""
    chunks, matches, prompt, at = [], [], [], 0
    for number in range(1, draw(st.integers(1, 4)) + 1):
        tokens = draw(ids)
        span = Span(at, at + len(tokens))
        chunks.append(span)
        prompt += tokens
        at = span.end
        if draw(st.booleans()):
            target = span if draw(st.booleans()) or len(span) == 1 else Span(span.start + 1, span.end)
            begun = tuple(prompt[span.start : target.start]) if draw(st.booleans()) else ()
            donor = Donor(
                number, begun + draw(ids), draw(st.integers(0, 9)), bytes([number]), bytes([number + 1]), True
            )
            matches.append(Match(target, donor, Span(0, len(donor.token_ids)), Tier.SIMILAR, draw(st.floats(0.5, 1))))
    tiers = draw(st.lists(st.sampled_from(REUSE_TIERS)))
    return prompt, matches, chunks, ReusePolicy(tiers=tiers, threshold=0.6, min_span=draw(st.integers(1, 4)))


@given(scenes())
@settings(max_examples=80, deadline=None)
def test_ids_differ_only_in_substitutes_and_those_keep_every_fact(scene):
    prompt, matches, chunks, policy = scene
    plan = build_plan(prompt, matches, chunks, policy, frozenset(Tier), decode, chunks)
    covered = sorted([piece.target for piece in plan.reuse] + list(plan.compute))
    assert [t for span in covered for t in range(span.start, span.end)] == list(range(len(prompt)))
    assert plan.compute[-1].end == len(prompt)
    for piece in plan.reuse:
        ours = prompt[piece.target.start : piece.target.end]
        lent = list(piece.donor.token_ids[piece.offset : piece.offset + len(piece.target)])
        assert piece.tier in policy.tiers
        assert piece.similarity >= policy.threshold
        assert len(lent) == len(ours)
        if piece.tier is Tier.SUBSTITUTE:
            chunk = next(c for c in chunks if c.start <= piece.target.start < c.end)
            before = tuple(prompt[chunk.start : piece.target.start])
            whole = decode(prompt[chunk.start : chunk.end])
            assert piece.donor.token_ids[: piece.offset] == before
            languages = languages_of(whole)
            assert not changes_fact(decode(piece.donor.token_ids), whole, languages)
            assert not changes_fact(decode(before) + decode(lent), whole, languages)
            assert piece.offset + len(lent) == min(len(chunk), len(piece.donor.token_ids))
            assert chunk.end < len(prompt)
        else:
            assert lent == ours


@given(scenes())
@settings(max_examples=30, deadline=None)
def test_without_the_chunks_nothing_is_substituted(scene):
    prompt, matches, chunks, policy = scene
    plan = build_plan(prompt, matches, chunks, policy, frozenset(Tier), decode)
    assert Tier.SUBSTITUTE not in {piece.tier for piece in plan.reuse}
    assert plan.substitute_from is None


def test_a_substitute_is_a_run_of_its_own_that_repair_leaves_alone():
    first = Donor(1, tuple(range(10)), 5, b"a", b"b", True)
    second = Donor(2, tuple(range(10)), 15, b"b", b"c", True)
    pieces = (
        ReuseSpan(Span(0, 10), first, 0, Tier.EXACT),
        ReuseSpan(Span(10, 20), second, 0, Tier.SUBSTITUTE),
    )
    plan = Plan(30, pieces)
    assert [(run.span, run.repairable) for run in plan.runs] == [(Span(0, 10), True), (Span(10, 20), False)]
    assert plan.repairable_tokens == 10
    assert plan.substitute_from == 10


def test_default_tiers_leave_it_out():
    assert ReusePolicy().tiers == DEFAULT_TIERS
    assert Tier.SUBSTITUTE not in DEFAULT_TIERS
    assert ReusePolicy(tiers=REUSE_TIERS).tiers[-1] is Tier.SUBSTITUTE


HEAD = "the old city stood near the great water and the people of the country came there every year again.\n\n"
FIRST = "the small children saw the white light in the night and thought about the story of the river.\n\n"
OTHER = "the little children saw a white light at night and thought about the story of that river.\n\n"
TAIL = "where does the large family live after the long day in the open field, and what do they think of it?"


@pytest.fixture
def boosted():
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    cache = LocalCache(embedder=NgramEmbedder())
    tiers = (Tier.PREFIX, Tier.SUBSTITUTE)  # what follows the substitute is computed
    boost(model, tokenizer, cache=cache, policy=ReusePolicy(tiers=tiers, threshold=0.3, repair="none"))
    yield model, tokenizer, cache
    unboost(model)
    cache.close()


def _ids(tokenizer, text):
    return tokenizer(text, return_tensors="pt").input_ids


def _first_logits(model, prompt):
    out = model.generate(
        prompt, max_new_tokens=1, do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=0
    )
    return out.logits[0][0]


def test_the_donors_wording_is_what_the_model_reads(boosted):
    model, tokenizer, cache = boosted
    cold, warm = _ids(tokenizer, HEAD + FIRST + TAIL), _ids(tokenizer, HEAD + OTHER + TAIL)
    _first_logits(model, cold)
    model.kvboost_engine.writer.flush()
    cache.flush()
    stored = cache.stats().namespaces[0].chunks
    logits = _first_logits(model, warm)
    report = model.last_reuse
    assert report.fallback is None
    assert report.tokens_by_tier[Tier.SUBSTITUTE] >= 16
    assert not report.lossless
    assert report.similarity < 1.0
    [substituted] = [s.span for s in report.spans if s.tier is Tier.SUBSTITUTE]

    # What was read: the prompt, with the donor's tokens where its own would have stood.
    read = warm.clone()
    read[:, substituted.start : substituted.end] = cold[:, substituted.start : substituted.end]
    assert not torch.equal(read, warm)
    expected = model(input_ids=read).logits[0, -1]
    other = model(input_ids=warm).logits[0, -1]
    assert (logits - expected).abs().max() < 1e-3 * expected.abs().max()
    assert (logits - other).abs().max() > 1e-2 * expected.abs().max()

    # Nothing from there on is stored: the token ids do not tell what its K/V have seen.
    model.kvboost_engine.writer.flush()
    assert cache.stats().namespaces[0].chunks == stored


@pytest.mark.parametrize(
    ("old", "new"), [("the small children", "seven small children"), ("and thought", "and never thought")]
)
def test_a_changed_fact_is_never_substituted(boosted, old, new):
    model, tokenizer, cache = boosted
    _first_logits(model, _ids(tokenizer, HEAD + FIRST + TAIL))
    model.kvboost_engine.writer.flush()
    cache.flush()
    assert old in FIRST
    _first_logits(model, _ids(tokenizer, HEAD + FIRST.replace(old, new) + TAIL))
    assert model.last_reuse.tokens_by_tier[Tier.SUBSTITUTE] == 0
    assert model.last_reuse.tokens_by_tier[Tier.COMPUTED] > 16


def test_the_default_policy_substitutes_nothing(boosted):
    model, tokenizer, cache = boosted
    _first_logits(model, _ids(tokenizer, HEAD + FIRST + TAIL))
    model.kvboost_engine.writer.flush()
    cache.flush()
    warm = _ids(tokenizer, HEAD + OTHER + TAIL)
    model.kvboost_engine.generate(warm, max_new_tokens=1, pad_token_id=0)
    _, report = model.kvboost_engine.generate(warm, max_new_tokens=1, pad_token_id=0, policy=ReusePolicy(threshold=0.3))
    assert report.tokens_by_tier[Tier.SUBSTITUTE] == 0
