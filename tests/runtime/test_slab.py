"""The slab behaves as a cache of transformers does."""

import copy

import pytest
import torch
from transformers import DynamicCache

from kvboost.runtime.kv.slab import LayerGate, SlabCache, SplicePass
from kvboost.types import KVLayout

LAYOUT = KVLayout(2, 2, 4, 6, "float32")


def states(count, seed, batch=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 2, count, 4, generator=generator), torch.randn(batch, 2, count, 6, generator=generator)


def both(capacity=16, batch=1):
    return SlabCache(LAYOUT, capacity, batch_size=batch), DynamicCache()


def append(cache, count, seed, batch=1):
    return [cache.update(*states(count, seed + layer, batch), layer) for layer in range(2)]


def assert_equal(slab, other):
    for ours, theirs in zip(slab.layers, other.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)


def test_appending_gives_what_a_dynamic_cache_gives():
    slab, other = both()
    for step, count in enumerate([5, 1, 1, 3]):
        for ours, theirs in zip(append(slab, count, step), append(other, count, step), strict=True):
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])
    assert slab.get_seq_length() == other.get_seq_length() == 10


def test_it_grows_past_its_capacity():
    slab, other = both(capacity=4)
    for step in range(6):
        append(slab, 3, step), append(other, 3, step)
    assert_equal(slab, other)


def test_appending_within_the_capacity_stays_in_the_slab():
    slab, _ = both()
    append(slab, 5, 0)
    append(slab, 1, 1)
    assert slab.layers[0].keys.data_ptr() == slab.key_slab[0].data_ptr()
    assert torch.equal(slab.key_slab[1][:, :, :6], slab.layers[1].keys)


@pytest.mark.parametrize("change", ["reorder", "crop", "select", "repeat"])
def test_what_generate_does_to_a_cache_is_followed(change):
    slab, other = both(batch=3)
    append(slab, 5, 0, 3), append(other, 5, 0, 3)
    batch = 3
    for cache in (slab, other):
        if change == "reorder":
            cache.reorder_cache(torch.tensor([2, 2, 0]))
        elif change == "crop":
            cache.crop(-2)
        elif change == "select":
            cache.batch_select_indices(torch.tensor([1]))
            batch = 1
        else:
            cache.batch_repeat_interleave(2)
            batch = 6
    assert_equal(slab, other)
    append(slab, 2, 9, batch), append(other, 2, 9, batch)
    assert_equal(slab, other)


def test_reordering_by_identity_keeps_later_appends_apart():
    slab, other = both(batch=2)
    for step in range(3):
        append(slab, 2, step, 2), append(other, 2, step, 2)
        slab.reorder_cache(torch.tensor([1, 0])), other.reorder_cache(torch.tensor([1, 0]))
    assert_equal(slab, other)


def test_a_splice_writes_between_what_is_there():
    slab, _ = both()
    append(slab, 8, 0)
    before = slab.layers[0].keys.clone()
    slab.set_splice(SplicePass(torch.tensor([2, 5, 8]), 9))
    keys, values = states(3, 50)
    seen_keys, seen_values = slab.update(keys, values, 0)
    assert seen_keys.shape[-2] == seen_values.shape[-2] == 9
    assert torch.equal(seen_keys[:, :, [2, 5, 8]], keys)
    assert torch.equal(seen_keys[:, :, [0, 1, 3, 4, 6, 7]], before[:, :, [0, 1, 3, 4, 6, 7]])
    slab.set_splice(None)
    slab.update(*states(1, 60), 0)
    assert slab.layers[0].keys.shape[-2] == 10


def test_a_fresh_slab_is_finite_and_empty():
    slab, _ = both()
    assert slab.get_seq_length() == 0
    assert torch.isfinite(slab.value_slab).all()


def test_sliding_layers_are_not_claimed():
    slab, _ = both()
    assert not any(slab.is_sliding)


def test_a_cache_without_a_gate_can_be_copied():
    cache = SlabCache(LAYOUT, 8)
    gate = LayerGate()
    cache.set_gate(gate)
    gate.open(LAYOUT.num_layers)
    cache.set_gate(None)
    cache.set_length(3)
    assert copy.deepcopy(cache).get_seq_length() == 3
