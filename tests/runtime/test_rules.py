"""Reuse at other positions and under other histories, end to end on tiny models."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from transformers import DynamicCache

from kvboost.policy import ReusePolicy
from kvboost.runtime.tools.score import forced_logits, full_prefill, loss
from kvboost.types import Chunk, Segmentation, Span, Tier
from tests.boosting import (
    boosted,
    document,
    new_cache,
    plain,
    prompt,
    reused,
    segmenter,
    step_logits,
    tokenizer,
    warm,
)
from tests.faulty_cache import FaultyCache
from tests.tiny_models import SLIDING, SUPPORTED

A, B, C, D = (document(i) for i in (1, 2, 3, 4))
ROTATE_ONLY = ReusePolicy(repair="none")
ARGUMENTS = {"do_sample": False, "max_new_tokens": 6}


def span_of(ids, text):
    """Return where ``text`` stands in the prompt."""
    tokens = tokenizer()(text, add_special_tokens=False).input_ids
    row = ids[0].tolist()
    start = next(i for i in range(len(row)) if row[i : i + len(tokens)] == tokens)
    return Span(start, start + len(tokens))


def tiers_within(model, span):
    return {s.tier for s in model.last_reuse.spans if s.span.start < span.end and s.span.end > span.start}


@pytest.mark.parametrize("arch", ["llama", "phi", "cohere", "gemma3", "cohere2"])
def test_keys_of_layer_0_are_those_of_a_fresh_prefill_and_values_too(arch):
    """Layer 0 has no history, so there re-rotation must be exact, wherever a chunk comes from."""
    ids = prompt(C, A, B)
    with boosted(arch, policy=ROTATE_ONLY) as model:
        warm(model, prompt(A, B, C))
        engine = model.kvboost_engine
        prepared = engine.preparer.prepare(ids[0].tolist(), 0)
        assert len(prepared.plan.reuse) > 4
        with torch.no_grad():
            prepared.splice.run(model, ids.shape[1] - 1)
            fresh = DynamicCache()
            model(input_ids=ids[:, :-1], cache=fresh, use_cache=True)
        ours, theirs = prepared.splice.cache.layers[0], fresh.layers[0]
        torch.testing.assert_close(ours.keys, theirs.keys, atol=5e-4, rtol=1e-3)
        torch.testing.assert_close(ours.values, theirs.values, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("arch", [*SUPPORTED, *SLIDING])
def test_all_chunks_hit_in_another_order(arch):
    with boosted(arch, policy=ROTATE_ONLY) as model:
        warm(model, prompt(A, B, C))
        ids = prompt(B, C, A)
        result = model.generate(ids, **ARGUMENTS)
        assert result.shape[1] > ids.shape[1]
        assert reused(model, Tier.EXACT) + reused(model, Tier.SIMILAR) > 0.8 * ids.shape[1]


def test_chunks_1_and_3_cached_and_2_new():
    ids = prompt(A, B, C)
    with boosted(policy=ROTATE_ONLY) as model:
        warm(model, prompt(A), prompt(C))
        model.generate(ids, **ARGUMENTS)
        assert Tier.PREFIX in tiers_within(model, span_of(ids, A))
        # Its first chunk may have been stored with the token that began its own prompt.
        assert tiers_within(model, span_of(ids, C)) <= {Tier.SIMILAR, Tier.EXACT}
        inside = span_of(ids, B)
        assert tiers_within(model, Span(inside.start + 10, inside.end)) == {Tier.COMPUTED}


class CutAt:
    """Cuts after the given texts, wherever they stand; a sentence is a chunk."""

    def __init__(self, *texts):
        self.texts = [t.tolist() for t in texts]

    def segment(self, token_ids):
        row, n = list(token_ids), len(token_ids)
        cuts = {i + len(t) for t in self.texts for i in range(n) if row[i : i + len(t)] == t}
        spans = [Span(a, b) for a, b in pairwise([0, *sorted(cuts - {n}), n])]
        chunks = [Chunk(s, tokenizer().decode(token_ids[s.start : s.end])) for s in spans]
        return Segmentation(tuple(chunks), tuple(spans))


def test_the_token_that_begins_a_prompt_is_no_fact_of_the_text_behind_it():
    first, second = prompt(A), prompt(B, A)
    start = span_of(second, A).start
    segments = CutAt(second[0, start - 10 : start], first[0, 10:30])
    with boosted(policy=ROTATE_ONLY, segmenter_=segments) as model:
        warm(model, first)
        model.generate(second, **ARGUMENTS)
        assert tiers_within(model, Span(start, start + 29)) == {Tier.SIMILAR}


def test_recomputing_all_reused_tokens_comes_close_to_full_prefill():
    ids = prompt(C, A, B)
    with boosted() as model:
        warm(model, prompt(A, B, C))
        engine = model.kvboost_engine
        full = full_prefill(engine, ids[0].tolist(), 6)
        losses = []
        for ratio in (0.0, 0.4, 1.0):
            policy = ReusePolicy(recompute_ratio=ratio, tiers=("prefix", "exact"), question_tokens=4)
            logits, _ = forced_logits(engine, ids[0].tolist(), full.answer_ids, policy)
            losses.append(loss(full.logits, logits).kl_mean)
        assert losses[2] < 0.5 * losses[0]
        assert losses[2] < losses[1]


def test_a_donor_with_other_ids_is_not_used():
    cache = FaultyCache(new_cache())

    def lie(match):
        ids = list(match.donor.token_ids)
        ids[len(ids) // 2] = 3 + ids[len(ids) // 2] % 500
        return replace(match, donor=replace(match.donor, token_ids=tuple(ids)))

    ids = prompt(A, B)
    with boosted(cache=cache, policy=ReusePolicy(tiers=("prefix", "exact"))) as model:
        warm(model, ids)
        cache.on_match = lie
        expected, logits = step_logits(model, ids, plainly=True)
        found, found_logits = step_logits(model, ids)
        assert model.last_reuse.reused_tokens == 0
        assert "token ids differ from the donor's" in model.last_reuse.declined
        assert torch.equal(found, expected)
        torch.testing.assert_close(found_logits, logits, atol=1e-4, rtol=1e-4)


def test_an_exact_match_sold_as_a_prefix_is_not_taken_for_lossless():
    cache = FaultyCache(new_cache())

    def promote(match):
        return replace(match, tier=Tier.PREFIX)

    with boosted(cache=cache, policy=ROTATE_ONLY) as model:
        warm(model, prompt(A, B))
        cache.on_match = promote
        ids = prompt(B, A)
        assert torch.equal(model.generate(ids, **ARGUMENTS), plain(model, ids, **ARGUMENTS))
        assert reused(model, Tier.PREFIX) < 20


EDITS = [("water", "seven"), ("The", "Not the"), ("together", "in 1984"), ("together", "with Alice")]


@pytest.mark.parametrize(("old", "new"), EDITS)
def test_a_changed_fact_makes_its_sentence_computed_and_leaves_the_others(old, new):
    sentences = [s + "." for s in (document(7, sentences=4, words=9)).rstrip(".").split(". ")]
    sentences[2] = "The water was near the old house together."
    before = " ".join(sentences)
    edited = list(sentences)
    edited[2] = sentences[2].replace(old, new, 1)
    ids = prompt(D, " ".join(edited))
    with boosted(policy=ReusePolicy(repair="none", min_span=4, threshold=0.5)) as model:
        warm(model, prompt(D), prompt(A, before))
        model.generate(ids, **ARGUMENTS)
        changed = span_of(ids, " " + edited[2])
        assert tiers_within(model, changed) == {Tier.COMPUTED}
        assert model.last_reuse.reused_tokens > 0.6 * ids.shape[1]
        assert tiers_within(model, span_of(ids, " " + edited[1])) <= {Tier.PREFIX, Tier.SIMILAR, Tier.EXACT}


def test_the_answer_to_an_edited_prompt_carries_the_edit():
    """With the whole sentence recomputed the K/V at the changed words are fresh at every layer."""
    before = "The water was near the old house together."
    edited = before.replace("water", "seven")
    ids = prompt(A, edited + " " + B)
    with boosted(policy=ReusePolicy(repair="none", threshold=0.5)) as model:
        warm(model, prompt(A, before + " " + B))
        prepared = model.kvboost_engine.preparer.prepare(ids[0].tolist(), 0)
        changed = span_of(ids, edited)
        assert prepared.plan.approximate_from is None or prepared.plan.approximate_from >= changed.end
        with torch.no_grad():
            prepared.splice.run(model, ids.shape[1] - 1)
            fresh = DynamicCache()
            model(input_ids=ids[:, :-1], cache=fresh, use_cache=True)
        for ours, theirs in zip(prepared.splice.cache.layers, fresh.layers, strict=True):
            at = slice(0, changed.end)
            torch.testing.assert_close(ours.keys[:, :, at], theirs.keys[:, :, at], atol=1e-4, rtol=1e-3)


def test_a_call_that_fails_before_its_first_pass_leaves_the_next_pass_alone():
    ids = prompt(C, A, D)
    with boosted(policy=ROTATE_ONLY) as model:
        warm(model, prompt(A, B, C))
        with torch.no_grad():
            expected = model(input_ids=ids[:, :50]).logits
        with pytest.raises(ValueError, match="unknown_argument"):
            model.generate(ids, unknown_argument=3, **ARGUMENTS)
        with torch.no_grad():
            assert torch.equal(model(input_ids=ids[:, :50]).logits, expected)


def test_chunk_spans_of_the_segmenter_are_found_inside_the_prompt():
    """Chunks are cut out of the prompt's own tokens, so a document is found behind any text."""
    with boosted(policy=ROTATE_ONLY) as model:
        warm(model, prompt(A))
        for before in ("# #", "一二三。", "Note:", "\n\n", "x" * 30):
            ids = prompt(before, A)
            model.generate(ids, **ARGUMENTS)
            assert reused(model, Tier.EXACT) > 40, before
    assert len(segmenter().segment(prompt(A)[0].tolist()).chunks) > 2
