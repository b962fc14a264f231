"""Grouped attention computes what transformers' sdpa computes, and is there only while a model is boosted."""

import pytest
import torch
from transformers import DynamicCache

from kvboost.api import boost, unboost
from kvboost.runtime.grouped import GROUPED, additive, use_grouped, use_own
from tests.tiny_models import SLIDING, SUPPORTED, random_ids, tiny_model, tiny_tokenizer

LENGTH = 60
IDS = random_ids(LENGTH)
GROUPED_MODELS = [
    arch
    for arch in [*SUPPORTED, *SLIDING]
    if arch != "gemma2" and tiny_model(arch).config.num_key_value_heads < tiny_model(arch).config.num_attention_heads
]


def suffix_logits(model, new_tokens=20):
    """Return the logits of a second pass over a cache, which runs under a mask, and of a step after it."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=IDS[:, : LENGTH - new_tokens - 1], cache=cache, use_cache=True)
        passed = model(input_ids=IDS[:, LENGTH - new_tokens - 1 : -1], cache=cache, use_cache=True).logits
        step = model(input_ids=IDS[:, -1:], cache=cache, use_cache=True).logits
    return passed, step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("arch", GROUPED_MODELS)
def test_results_equal_sdpa(arch, dtype):
    model = tiny_model(arch, dtype)
    expected = suffix_logits(model)
    use_grouped(model)
    assert model.config._attn_implementation == GROUPED
    for found, wanted in zip(suffix_logits(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5 if dtype == torch.float32 else 1e-2, rtol=0)
    use_own(model)


def test_a_padded_batch_equals_sdpa():
    model = tiny_model("llama")
    ids = random_ids(12).repeat(2, 1)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    with torch.no_grad():
        expected = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
        use_grouped(model)
        assert torch.equal(model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False), expected)


def test_the_kernel_is_asked_for_under_a_mask(monkeypatch):
    model = tiny_model("llama")
    use_grouped(model)
    asked = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def spy(*args, **kwargs):
        asked.append((args[1].shape[1], kwargs["attn_mask"] is not None))
        return plain(*args, **kwargs)

    monkeypatch.setattr("kvboost.runtime.grouped.scaled_dot_product_attention", spy)
    suffix_logits(model)
    assert asked == [(model.config.num_key_value_heads, True)] * model.config.num_hidden_layers


def test_boost_switches_and_unboost_restores():
    model = tiny_model("llama")
    assert boost(model, tiny_tokenizer()).config._attn_implementation == GROUPED
    assert unboost(model).config._attn_implementation == "sdpa"


def test_eager_and_ungrouped_models_keep_their_own():
    for model in (tiny_model("llama", attn_implementation="eager"), tiny_model("llama", num_key_value_heads=4)):
        before = model.config._attn_implementation
        use_grouped(model)
        assert model.config._attn_implementation == before


def test_hidden_keys_get_a_finite_number():
    mask = additive(torch.tensor([[True, False]]), torch.float16)
    assert mask.dtype == torch.float16
    assert mask.isfinite().all()
    assert mask[0, 0] == 0.0 > mask[0, 1]
