"""One decode step over rows of different length against each row alone, on every kind of model."""

from __future__ import annotations

import threading

import pytest
import torch

from kvboost.runtime.attention.recording import attention_of
from kvboost.runtime.batching.attention import RowsKV, attending
from kvboost.runtime.batching.step import decode_step
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.model.support import examine
from tests.tiny_models import SLIDING, SUPPORTED, random_ids, tiny_model

LENGTHS = (2, 90, 33, 60)  # some beyond the windows of 32
STEPS = 3


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("arch", [*SUPPORTED, *SLIDING, "smollm3", "cohere2"])
def test_rows_of_a_step_are_those_of_single_passes(arch: str, attention: str) -> None:
    model = tiny_model(arch)
    if model.config._attn_implementation != attention:
        if attention == "sdpa":
            pytest.skip("has eager attention alone")
        model.set_attn_implementation(attention)
    layout = examine(model).layout
    prompts = [random_ids(n + STEPS, seed=n) for n in LENGTHS]
    expected = [model(input_ids=ids, use_cache=False).logits[0, -STEPS:] for ids in prompts]
    caches = [SlabCache(layout, 8) for _ in prompts]  # too small: they grow while they are filled
    for ids, cache in zip(prompts, caches, strict=True):
        model(input_ids=ids[:, :-STEPS], cache=cache, use_cache=True)
    for step in range(STEPS):
        logits = decode_step(model, caches, [int(ids[0, step - STEPS]) for ids in prompts], threading.Lock())
        for got, alone in zip(logits, expected, strict=True):
            torch.testing.assert_close(got, alone[step], rtol=1e-4, atol=1e-4)
    assert [cache.get_seq_length() for cache in caches] == [n + STEPS for n in LENGTHS]
    assert attention_of(model) == model.config._attn_implementation == attention


@torch.no_grad()
def test_a_pass_of_another_thread_is_not_touched() -> None:
    model, ids = tiny_model("llama"), random_ids(20)
    expected = model(input_ids=ids).logits
    seen: list[torch.Tensor] = []

    def run() -> None:
        with torch.no_grad():
            seen.append(model(input_ids=ids).logits)

    with attending(model, RowsKV()):
        assert attention_of(model) == "sdpa"
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert torch.equal(seen[0], expected)
