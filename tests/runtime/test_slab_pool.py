"""Memory goes from one request to the next, and with it nothing that could be seen."""

import torch

from kvboost.api import engine_of
from kvboost.runtime.kv.slab_pool import STEP_TOKENS, SlabPool
from kvboost.types import KVLayout, Span
from tests.boosting import GREEDY, boosted, document, prompt

LAYOUT = KVLayout(2, 2, 4, 6, "float32")


def capacity(slab):
    return slab.key_slab.shape[3]


def test_the_largest_that_came_back_is_used_again():
    pool = SlabPool(LAYOUT, "cpu")
    small, large = pool.take(10), pool.take(STEP_TOKENS + 1)
    assert (capacity(small), capacity(large)) == (STEP_TOKENS, 2 * STEP_TOKENS)
    address = large.key_slab.data_ptr()
    pool.give(small)
    pool.give(large)
    again = pool.take(STEP_TOKENS + 5)
    assert again.key_slab.data_ptr() == address
    assert again.get_seq_length() == 0
    assert pool.take(5).key_slab.data_ptr() != address  # it is in use
    pool.give(again)
    assert capacity(pool.take(2 * STEP_TOKENS + 1)) == 3 * STEP_TOKENS


def test_a_slab_that_was_given_back_shows_nothing():
    pool = SlabPool(LAYOUT, "cpu")
    slab = pool.take(10)
    pool.give(slab)
    assert slab.layers == []


def test_clear_zeroes_the_span_alone():
    slab = SlabPool(LAYOUT, "cpu").take(10)
    slab.key_slab += 1
    slab.value_slab += 1
    slab.clear(Span(3, 5))
    for each in (slab.key_slab, slab.value_slab):
        assert not each[:, :, :, 3:5].any()
        assert each.sum() == each.numel() - each[:, :, :, 3:5].numel()


def test_what_an_earlier_request_left_is_never_seen():
    """A request that leaves NaN everywhere must not reach the next, wherever that one has gaps."""
    docs = [document(i) for i in range(4)]
    wanted = {}
    for poisoned in (False, True):
        with boosted("llama") as model:
            engine = engine_of(model)
            model.generate(prompt(*docs[:3]), **GREEDY)
            engine.writer.flush()
            pool = engine.preparer.slabs
            if poisoned:
                slab = pool.take(STEP_TOKENS)
                slab.key_slab.fill_(torch.nan)
                slab.value_slab.fill_(torch.nan)
                pool.give(slab)
            out = model.generate(prompt(docs[2], docs[3], docs[0]), **GREEDY)
            assert model.last_reuse.reused_tokens > 0
            wanted[poisoned] = out
    assert torch.equal(wanted[True], wanted[False])


def test_a_cache_that_the_caller_gets_is_not_used_again():
    with boosted("llama") as model:
        engine = engine_of(model)
        first = model.generate(prompt(document(1)), **GREEDY, return_dict_in_generate=True)
        keys = first.past_key_values.layers[0].keys.clone()
        model.generate(prompt(document(2)), **GREEDY)
        engine.writer.flush()
        assert torch.equal(first.past_key_values.layers[0].keys, keys)
