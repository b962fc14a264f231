"""The prefix tier is lossless: greedy answers and logits are those of an ordinary ``generate()``."""

import pytest
import torch

from kvboost.policy import ReusePolicy
from kvboost.types import Tier
from tests.boosting import boosted, document, new_cache, prompt, reused, settle, step_logits, stored_donors, warm
from tests.tiny_models import ROPE_SCALING, SLIDING, SUPPORTED, TRAPS, tiny_model

FIRST = prompt(document(1), document(2))
LONGER = prompt(document(1), document(2), document(3))
FORKED = prompt(document(1), document(2, sentences=2) + " " + document(9))
PREFIX = ReusePolicy(tiers=("prefix",))


def assert_lossless(model, ids, at_least, atol=2e-4, **settings):
    expected, logits = step_logits(model, ids, plainly=True, **settings)
    found, found_logits = step_logits(model, ids, **settings)
    assert reused(model, Tier.PREFIX) >= at_least
    assert model.last_reuse.lossless
    torch.testing.assert_close(found_logits, logits, atol=atol, rtol=1e-3)
    assert torch.equal(found, expected)


def common(a, b):
    return next(i for i in range(min(a.shape[1], b.shape[1])) if a[0, i] != b[0, i])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("arch", [*SUPPORTED, *SLIDING, *TRAPS, "gpt2", "bloom"])
def test_greedy_output_is_that_of_generate(arch, attention):
    if arch in ("gemma2", "bloom") and attention == "sdpa":
        pytest.skip("has eager attention alone")
    with boosted(arch, policy=PREFIX, attn_implementation=attention) as model:
        warm(model, FIRST)
        assert_lossless(model, LONGER, common(FIRST, LONGER))
        assert_lossless(model, FORKED, common(FIRST, FORKED))
        assert_lossless(model, FIRST, FIRST.shape[1] - 1)


@pytest.mark.parametrize("scaling", ROPE_SCALING)
def test_greedy_output_under_rope_scaling(scaling):
    with boosted("llama", policy=PREFIX, rope=scaling) as model:
        warm(model, FIRST)
        assert_lossless(model, LONGER, 0 if scaling == "longrope" else common(FIRST, LONGER))


def test_longrope_across_its_switch_of_frequencies():
    """Below the original context keys are rotated by other factors than beyond it."""
    short, long = prompt(document(1), question="And?"), prompt(document(1), document(2), document(3))
    assert short.shape[1] < 128 < long.shape[1]
    with boosted("llama", policy=PREFIX, rope="longrope") as model:
        warm(model, short)
        assert_lossless(model, long, 0)
        assert "other frequencies" in model.last_reuse.declined[0]
        warm(model, long)
        assert_lossless(model, short, short.shape[1] - 1)
        both = torch.zeros((2, long.shape[1]), dtype=torch.long)
        both[0, -short.shape[1] :], both[1] = short[0], long[0]
        assert_lossless(model, both, 0)


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_decoding_past_a_switch_of_frequencies_stores_nothing_wrong(scaling):
    ids = prompt(document(1), question="And?")
    with boosted("llama", policy=PREFIX, rope=scaling, max_position_embeddings=128) as model:
        model.generate(ids, do_sample=False, max_new_tokens=150 - ids.shape[1])
        settle(model)
        assert_lossless(model, ids, 0)
        assert_lossless(model, torch.cat([ids, ids[:, 5:15]], 1), 0)


def test_a_sliding_window_without_layer_types():
    with boosted("mistral", policy=PREFIX, sliding_window=24) as model:
        warm(model, FIRST)
        assert_lossless(model, LONGER, common(FIRST, LONGER), max_new_tokens=40)


@pytest.mark.parametrize("arch", SLIDING)
def test_decoding_goes_on_past_the_window(arch):
    with boosted(arch, policy=PREFIX) as model:
        warm(model, FIRST)
        assert_lossless(model, LONGER, common(FIRST, LONGER), max_new_tokens=60)


def test_reuse_goes_on_token_by_token_into_the_first_chunk_that_differs():
    ids = LONGER.clone()
    with boosted(policy=PREFIX) as model:
        warm(model, LONGER)
        for place in (5, 40, 41, 42, 133, ids.shape[1] - 2):
            other = ids.clone()
            other[0, place] = 3 + (ids[0, place] + 1) % 500
            assert_lossless(model, other, place)
            assert reused(model, Tier.PREFIX) == place


def test_a_strict_prefix_of_a_cached_prompt():
    with boosted(policy=PREFIX) as model:
        warm(model, LONGER)
        for length in (2, 17, 100, LONGER.shape[1] - 1):
            assert_lossless(model, LONGER[:, :length], length - 1)


def test_the_same_prompt_twice():
    with boosted(policy=PREFIX) as model:
        warm(model, FIRST)
        for _ in range(3):
            assert_lossless(model, FIRST, FIRST.shape[1] - 1)
            assert model.last_reuse.tokens_by_tier[Tier.COMPUTED] == 1


def test_a_missing_middle_is_computed_and_the_rest_stays_lossless():
    cache = new_cache()
    with boosted(cache=cache, policy=PREFIX) as model:
        warm(model, LONGER)
        engine = settle(model)
        key = engine.preparer.namespace.key
        starts = sorted((donor.start, donor.chunk_id) for donor in stored_donors(cache, model))
        cache.evict(key, [starts[2][1], starts[5][1]])
        assert_lossless(model, LONGER, 150)
        computed = [s for s in model.last_reuse.spans if s.tier is Tier.COMPUTED]
        assert len(computed) == 3  # two gaps and the last token


@pytest.mark.parametrize("arch", ["gpt2", "bloom", "deepseek_v3"])
def test_a_missing_middle_ends_reuse_of_models_that_passed_no_gate(arch):
    cache = new_cache()
    with boosted(arch, cache=cache) as model:
        warm(model, LONGER)
        key = settle(model).preparer.namespace.key
        starts = sorted((donor.start, donor.chunk_id) for donor in stored_donors(cache, model))
        cache.evict(key, [starts[2][1]])
        assert_lossless(model, LONGER, 20)
        assert reused(model, Tier.PREFIX) == starts[2][0]


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float16, 0.1), (torch.bfloat16, 1.0)])
def test_half_precision_stays_within_its_rounding(dtype, atol):
    with boosted(policy=PREFIX, dtype=dtype) as model:
        warm(model, FIRST)
        _, logits = step_logits(model, LONGER, plainly=True, max_new_tokens=1)
        _, found = step_logits(model, LONGER, max_new_tokens=1)
        assert reused(model, Tier.PREFIX) >= common(FIRST, LONGER)
        assert (found - logits).abs().max() < atol
        # Rounding may turn near ties, and no more than those.
        assert logits.max() - logits.flatten()[found.argmax()] < 2 * atol


def test_generated_tokens_serve_the_next_turn():
    with boosted(policy=PREFIX) as model:
        answer = model.generate(FIRST, do_sample=False, max_new_tokens=40)
        settle(model)
        turn = torch.cat([answer, torch.tensor([[19, 204, 60, 77, 321]])], 1)
        assert_lossless(model, turn, answer.shape[1] - 1)
        assert model.last_reuse.reused_tokens / turn.shape[1] >= 0.95


def test_models_of_other_weights_share_nothing():
    cache = new_cache()
    with boosted(cache=cache, policy=PREFIX) as model:
        warm(model, FIRST)
    with boosted(cache=cache, policy=PREFIX, model=tiny_model("llama", seed=5)) as model:
        assert_lossless(model, FIRST, 0)
        assert model.last_reuse.reused_tokens == 0
