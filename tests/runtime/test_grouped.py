"""Grouped attention computes what transformers' sdpa computes, and is there only while a model is boosted."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from kvboost.api import boost, unboost
from kvboost.runtime.attention import grouped
from kvboost.runtime.attention.grouped import GROUPED, additive, in_blocks, use_grouped, use_own
from kvboost.runtime.attention.masks import position_masks
from kvboost.runtime.kv.slab import SlabCache, SplicePass
from kvboost.runtime.model.support import examine
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

    monkeypatch.setattr("kvboost.runtime.attention.grouped.scaled_dot_product_attention", spy)
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


@pytest.mark.parametrize("arch", ["llama", "mistral"])
@pytest.mark.parametrize("count", [1, 33, 200])
def test_blocks_change_nothing(arch, count):
    model = tiny_model(arch)
    ids = random_ids(320)
    support = examine(model)
    use_grouped(model)
    positions = torch.randperm(320, generator=torch.Generator().manual_seed(count))[:count].sort().values
    found = []
    for blocks in (True, False):
        slab = SlabCache(support.layout, 320)
        slab.key_slab.normal_(generator=torch.Generator().manual_seed(1))
        slab.value_slab.normal_(generator=torch.Generator().manual_seed(2))
        slab.set_splice(SplicePass(positions, 320))
        mask = position_masks(model, positions, 320)
        with torch.no_grad(), in_blocks(mask, positions) if blocks else nullcontext():
            inputs = {"input_ids": ids[:, positions], "position_ids": positions[None], "attention_mask": mask}
            found.append(model(**inputs, cache=slab, use_cache=True).logits)
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)


def test_blocks_are_for_their_own_mask_alone():
    model = tiny_model("llama")
    use_grouped(model)
    expected = suffix_logits(model)
    positions = torch.arange(LENGTH - 20 - 1, LENGTH - 1)
    with in_blocks(torch.zeros(1, 1, 20, LENGTH - 1), positions - 10):
        for found, wanted in zip(suffix_logits(model), expected, strict=True):
            assert torch.equal(found, wanted)


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=600))
def test_blocks_cover_every_row_once_and_every_key_that_it_sees(chosen):
    positions = torch.tensor(sorted(chosen))
    with in_blocks(torch.zeros(1), positions):
        blocks = grouped._BLOCKS.get().blocks
    assert [row for start, end, _ in blocks for row in range(start, end)] == list(range(len(positions)))
    assert all(reach == positions[end - 1] + 1 for _, end, reach in blocks)
    assert grouped._BLOCKS.get() is None


def test_blocks_are_cut_only_where_that_spares_keys():
    spread, crowded = torch.arange(0, 4096, 16), torch.arange(4096 - 256, 4096)
    for positions, count in ((spread, 4), (crowded, 1)):
        with in_blocks(torch.zeros(1), positions):
            assert len(grouped._BLOCKS.get().blocks) == count
