"""One pass over scattered tokens against an ordinary prefill."""

import pytest
import torch
from transformers import DynamicCache

from kvboost.runtime.attention.masks import position_masks
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.kv.splice import Splice, gaps_before_tail
from kvboost.runtime.model.support import examine
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.types import Donor, Span, Tier
from tests.tiny_models import SLIDING, SUPPORTED, TRAPS, random_ids, tiny_model

LENGTH = 120  # longer than any sliding window of the tiny models
ARCHS = [*SUPPORTED, *SLIDING, *(a for a in TRAPS if a != "deepseek_v3")]
ATTENTION = ["sdpa", "eager"]
# Gemma 2 has eager attention alone.
PAIRS = [(arch, kind) for arch in ARCHS for kind in ATTENTION if (arch, kind) != ("gemma2", "sdpa")]


def prefill(model, ids):
    """Return logits ``[N, vocab]`` and the cache of an ordinary prefill."""
    cache = DynamicCache()
    with torch.no_grad():
        logits = model(input_ids=ids, cache=cache, use_cache=True).logits[0]
    return logits, cache


def spliced(model, ids, scattered, tail_start, lent=None):
    """Return logits of all computed tokens, and the slab; K/V elsewhere are taken from ``lent``."""
    support = examine(model)
    length = ids.shape[1]
    slab = SlabCache(support.layout, length + 8)
    splice = Splice(slab, ids[0], scattered, tail_start, None, support)
    if lent is not None:
        for layer, other in zip(slab.layers, lent.layers, strict=True):
            layer.key_buffer[:, :, :tail_start] = other.keys[:, :, :tail_start]
            layer.value_buffer[:, :, :tail_start] = other.values[:, :, :tail_start]
            layer.key_buffer[:, :, scattered] = float("nan")
            layer.value_buffer[:, :, scattered] = 1e4
    with torch.no_grad(), splice.passing(model, length) as arguments:
        logits = model(**arguments, cache=slab, use_cache=True).logits[0]
    return logits, slab


def assert_same_kv(slab, cache, atol):
    for ours, theirs in zip(slab.layers, cache.layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys, atol=atol, rtol=1e-4)
        torch.testing.assert_close(ours.values, theirs.values, atol=atol, rtol=1e-4)


def nothing():
    return torch.empty(0, dtype=torch.long)


@pytest.mark.parametrize(("arch", "attention"), PAIRS)
def test_recomputing_everything_equals_full_prefill(arch, attention):
    model = tiny_model(arch, attn_implementation=attention)
    ids = random_ids(LENGTH)
    expected, cache = prefill(model, ids)
    logits, slab = spliced(model, ids, nothing(), 0)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert_same_kv(slab, cache, 1e-4)


@pytest.mark.parametrize(("arch", "attention"), PAIRS)
def test_a_scattered_part_over_reused_neighbours_equals_full_prefill(arch, attention):
    model = tiny_model(arch, attn_implementation=attention)
    ids = random_ids(LENGTH, seed=1)
    expected, cache = prefill(model, ids)
    scattered = torch.tensor([0, 3, 4, 5, 30, 31, 60, 77, 99])
    logits, slab = spliced(model, ids, scattered, 100, lent=cache)
    torch.testing.assert_close(
        logits, expected[torch.cat([scattered, torch.arange(100, LENGTH)])], atol=1e-4, rtol=1e-4
    )
    assert_same_kv(slab, cache, 1e-4)


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_sliding_window_without_layer_types_is_kept(attention):
    model = tiny_model("mistral", sliding_window=16, attn_implementation=attention)
    ids = random_ids(LENGTH, seed=1)
    expected, cache = prefill(model, ids)
    logits, _ = spliced(model, ids, torch.tensor([7, 50]), 90, lent=cache)
    torch.testing.assert_close(logits[-1], expected[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("attention", ATTENTION)
def test_half_precision_stays_close_to_full_prefill(dtype, attention):
    model = tiny_model("llama", dtype, attn_implementation=attention)
    ids = random_ids(LENGTH)
    expected, cache = prefill(model, ids)
    logits, _ = spliced(model, ids, torch.tensor([5, 40]), 100, lent=cache)
    gap = (logits[-1].float() - expected[-1].float()).norm() / expected[-1].float().norm()
    assert gap < (0.01 if dtype is torch.float16 else 0.08)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("arch", ["llama", "gemma3", "phi"])
def test_scattered_tokens_do_not_see_the_future(arch, attention):
    model = tiny_model(arch, attn_implementation=attention)
    ids = random_ids(LENGTH)
    other = ids.clone()
    other[0, 50:] = random_ids(LENGTH, seed=9)[0, 50:]
    _, cache = prefill(model, ids)
    _, other_cache = prefill(model, other)
    scattered = torch.tensor([2, 20, 49, 70])
    _, ours = spliced(model, ids, scattered, 100, lent=cache)
    _, theirs = spliced(model, other, scattered, 100, lent=other_cache)
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(a.keys[:, :, :50], b.keys[:, :, :50], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(a.values[:, :, :50], b.values[:, :, :50], atol=1e-5, rtol=1e-5)
        assert not torch.allclose(a.keys[:, :, 70], b.keys[:, :, 70], atol=1e-3)


def test_scattered_tokens_see_reused_ones_before_them():
    model = tiny_model("llama")
    ids = random_ids(LENGTH)
    _, cache = prefill(model, ids)
    _, ours = spliced(model, ids, torch.tensor([20]), 100, lent=cache)
    cache.layers[0].values[:, :, 10] += 1.0
    _, theirs = spliced(model, ids, torch.tensor([20]), 100, lent=cache)
    assert not torch.allclose(ours.layers[1].keys[:, :, 20], theirs.layers[1].keys[:, :, 20], atol=1e-3)


def test_running_up_to_a_position_leaves_the_cache_ready_for_the_rest():
    model = tiny_model("gemma2")
    ids = random_ids(LENGTH)
    expected, _ = prefill(model, ids)
    slab = SlabCache(examine(model).layout, LENGTH)
    splice = Splice(slab, ids[0], nothing(), 0, None, examine(model))
    with torch.no_grad():
        splice.run(model, LENGTH - 1)
        assert slab.get_seq_length() == LENGTH - 1
        position = torch.tensor([[LENGTH - 1]])
        last = model(input_ids=ids[:, -1:], position_ids=position, cache=slab, use_cache=True).logits[0, -1]
    torch.testing.assert_close(last, expected[-1], atol=1e-4, rtol=1e-4)


def test_running_a_prompt_of_one_token_computes_nothing():
    model = tiny_model("llama")
    slab = SlabCache(examine(model).layout, 4)
    Splice(slab, torch.tensor([7]), nothing(), 0, None, examine(model)).run(model, 0)
    assert slab.get_seq_length() == 0


def test_a_pass_that_fails_leaves_the_cache_appending():
    model = tiny_model("llama")
    slab = SlabCache(examine(model).layout, 8)
    splice = Splice(slab, torch.tensor([5, 6, 10_000, 7]), nothing(), 0, None, examine(model))
    with pytest.raises(IndexError):
        splice.run(model, 4)
    assert all(layer.splice is None for layer in slab.layers)


def test_masks_are_additive_for_eager_and_boolean_for_sdpa():
    positions = torch.tensor([1, 3])
    wanted = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool)
    sdpa = position_masks(tiny_model("llama", attn_implementation="sdpa"), positions, 5)
    eager = position_masks(tiny_model("llama", attn_implementation="eager"), positions, 5)
    assert torch.equal(sdpa[0, 0], wanted)
    assert torch.equal(eager[0, 0] == 0.0, wanted)
    assert (eager[0, 0][~wanted] == torch.finfo(torch.float32).min).all()


def test_a_window_counts_the_token_itself():
    mask = position_masks(tiny_model("gemma3", sliding_window=3), torch.tensor([4]), 6)
    assert mask["sliding_attention"][0, 0, 0].tolist() == [False, False, True, True, True, False]
    assert mask["full_attention"][0, 0, 0].tolist() == [True, True, True, True, True, False]


def test_keys_that_are_not_filled_are_hidden():
    filled = torch.tensor([True, False, True, True])
    mask = position_masks(tiny_model("llama"), torch.tensor([3]), 4, filled)
    assert mask[0, 0, 0].tolist() == filled.tolist()


def test_gaps_are_what_lies_between_reused_spans():
    donor = Donor(1, tuple(range(20)), 0, b"", b"", True)
    plan = Plan(12, (ReuseSpan(Span(2, 4), donor, 0, Tier.EXACT), ReuseSpan(Span(7, 9), donor, 0, Tier.EXACT)))
    assert gaps_before_tail(plan, "cpu").tolist() == [0, 1, 4, 5, 6]
    assert gaps_before_tail(Plan(12, ()), "cpu").tolist() == []
