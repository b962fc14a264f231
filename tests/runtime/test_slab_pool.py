"""Memory goes from one request to the next, and with it nothing that could be seen."""

import threading

import torch

from kvboost.api import engine_of
from kvboost.runtime.kv import slab_pool
from kvboost.runtime.kv.slab_pool import IDLE_S, KEPT_BYTES, STEP_TOKENS, SlabPool
from kvboost.types import KVLayout, Span
from tests.boosting import GREEDY, boosted, document, prompt

LAYOUT = KVLayout(2, 2, 4, 6, "float32")


def capacity(slab):
    return slab.key_slab.shape[3]


def test_memory_that_came_back_is_used_again_by_what_fits_it_best():
    pool = SlabPool(LAYOUT, "cpu")
    small, large = pool.take(10), pool.take(STEP_TOKENS + 1)
    assert (capacity(small), capacity(large)) == (STEP_TOKENS, 2 * STEP_TOKENS)
    addresses = {capacity(slab): slab.key_slab.data_ptr() for slab in (small, large)}
    pool.give(small)
    pool.give(large)
    for tokens in (STEP_TOKENS + 5, 5):
        again = pool.take(tokens)
        assert again.key_slab.data_ptr() == addresses[capacity(again)]
        assert again.get_seq_length() == 0
        assert capacity(again) < tokens + STEP_TOKENS
    assert pool.take(5).key_slab.data_ptr() not in addresses.values()  # both are in use


def test_a_short_prompt_leaves_a_long_ones_memory_alone():
    pool = SlabPool(LAYOUT, "cpu")
    pool.give(pool.take(128 * STEP_TOKENS))
    assert capacity(pool.take(10)) == STEP_TOKENS
    assert capacity(pool.take(32 * STEP_TOKENS)) == 128 * STEP_TOKENS


def test_what_is_kept_is_bounded():
    pool = SlabPool(LAYOUT, "cpu")
    tokens = KEPT_BYTES // LAYOUT.token_bytes // 3
    out = [pool.take(tokens) for _ in range(5)]
    for slab in out:
        pool.give(slab)
    assert KEPT_BYTES // 2 < pool.kept_bytes <= KEPT_BYTES
    pool.give(pool.take(2 * KEPT_BYTES // LAYOUT.token_bytes))
    assert pool.kept_bytes >= 2 * KEPT_BYTES  # one alone may be larger
    pool.give(pool.take(10))
    assert pool.kept_bytes < KEPT_BYTES


def test_what_nobody_takes_goes_back_to_the_system():
    now_s = [0.0]
    pool = SlabPool(LAYOUT, "cpu", lambda: now_s[0])
    pool.give(pool.take(128 * STEP_TOKENS))
    now_s[0] = IDLE_S - 1.0
    pool.give(pool.take(10))
    assert pool.sweep()
    now_s[0] += 2.0
    assert pool.sweep()
    assert pool.kept_bytes == STEP_TOKENS * LAYOUT.token_bytes
    now_s[0] += IDLE_S
    assert not pool.sweep()
    assert pool.kept_bytes == 0


def test_it_goes_back_without_another_request_too(monkeypatch):
    monkeypatch.setattr(slab_pool, "IDLE_S", 0.01)
    before = set(threading.enumerate())
    pool = SlabPool(LAYOUT, "cpu")
    pool.give(pool.take(10))
    for timer in set(threading.enumerate()) - before:
        timer.join(10.0)
    assert pool.kept_bytes == 0


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
