"""Paths that depend on the device: run by `make test-gpu` where there is a GPU.

Tiny random models in full precision; a GPU's products round otherwise than a CPU's, so answers are compared with plain
`generate()` on the same device.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from kvboost.api import engine_of
from kvboost.errors import ModelSupportError
from kvboost.policy import ReusePolicy
from kvboost.runtime.kv.codec import pack, unpack
from kvboost.runtime.model.device import synchronize
from kvboost.runtime.model.machine import available_bytes
from kvboost.runtime.model.rope import Pairing, Rope, rotated
from kvboost.types import KVLayout, Tier
from tests.boosting import GREEDY, boosted, document, new_cache, prompt
from tests.runtime_service import runtime_service
from tests.tiny_models import tiny_model

pytestmark = pytest.mark.gpu

POLICY = ReusePolicy(audit_rate=0.0, worth_it=False)
DOCUMENTS = [document(i) for i in range(4)]


def on(device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    return tiny_model("llama", dtype=dtype).to(device)


def ids_on(device: torch.device, *paragraphs: str) -> torch.Tensor:
    return prompt(*paragraphs).to(device)


def test_a_second_turn_is_answered_as_by_the_plain_model(device: torch.device) -> None:
    plain = on(device)
    first, second = ids_on(device, *DOCUMENTS[:2]), ids_on(device, *DOCUMENTS)
    with boosted(model=on(device), policy=POLICY) as model:
        model.generate(first, **GREEDY)
        answer = model.generate(second, **GREEDY)
        assert model.last_reuse.tokens_by_tier[Tier.PREFIX] > 0
    assert torch.equal(answer, plain.generate(second, **GREEDY))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reordered_documents_are_moved_on_the_device(device: torch.device, dtype: torch.dtype) -> None:
    with boosted(model=on(device, dtype), policy=POLICY) as model:
        model.generate(ids_on(device, *DOCUMENTS), **GREEDY)
        answer = model.generate(ids_on(device, *reversed(DOCUMENTS)), **GREEDY)
        assert model.last_reuse.tokens_by_tier[Tier.EXACT] > 0
        assert model.last_reuse.fallback is None
    assert answer.device.type == device.type


def test_angles_are_those_of_the_cpu(device: torch.device) -> None:
    """Also where the device has no float64 (MPS)."""
    rope = Rope(tuple(10000.0 ** (-i / 8) for i in range(8)), Pairing.HALF)
    positions = torch.tensor([0, 1, 1000, 131_071])
    for mine, cpus in zip(rope.angles(positions.to(device)), rope.angles(positions), strict=True):
        assert mine.device.type == device.type
        torch.testing.assert_close(mine.cpu(), cpus, atol=1e-5, rtol=0.0)
    keys = torch.randn(2, 4, 4, 16)
    there = rotated(keys.to(device), *rope.angles(positions.to(device)), rope)
    torch.testing.assert_close(there.cpu(), rotated(keys, *rope.angles(positions), rope), atol=1e-4, rtol=1e-4)


def test_ttft_waits_for_the_device(cuda: torch.device) -> None:
    """A pass that is only queued is no first token."""
    model = on(cuda)
    began = torch.cuda.Event(enable_timing=True)
    ended = torch.cuda.Event(enable_timing=True)

    def busy(*_: object) -> None:
        began.record()
        torch.cuda._sleep(200_000_000)
        ended.record()

    with boosted(model=model, policy=POLICY) as fast:
        fast.generate(ids_on(cuda, *DOCUMENTS), **GREEDY)
        hook = fast.register_forward_hook(busy)
        try:
            fast.generate(ids_on(cuda, *DOCUMENTS), do_sample=False, max_new_tokens=1)
        finally:
            hook.remove()
        synchronize(cuda)
        # The hook runs before ours: what it queued belongs to the pass.
        assert fast.last_reuse.ttft_s >= 0.5 * began.elapsed_time(ended) / 1000


def test_synchronizing_waits(cuda: torch.device) -> None:
    torch.cuda._sleep(100_000_000)
    synchronize(cuda)
    started_s = time.perf_counter()
    torch.cuda.synchronize(cuda)
    assert time.perf_counter() - started_s < 0.01


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bytes_are_the_same_from_either_side(device: torch.device, dtype: str) -> None:
    layout = KVLayout(2, 2, 8, 8, dtype)
    keys, values = (torch.randn(2, 2, 5, 8).to(getattr(torch, dtype)) for _ in range(2))
    payload = pack(keys.to(device), values.to(device), layout)
    assert bytes(payload) == bytes(pack(keys, values, layout))
    back, _ = unpack(payload, layout, 5)
    assert torch.equal(back, keys)


def test_what_a_cpu_stored_is_served_rightly_to_the_device(device: torch.device) -> None:
    """Shared or kept apart: the answer is the plain model's."""
    cache = new_cache()
    with boosted(model=tiny_model("llama"), cache=cache, policy=POLICY) as model:
        model.generate(prompt(*DOCUMENTS[:2]), **GREEDY)
        engine_of(model).writer.flush()
    ids = ids_on(device, *DOCUMENTS)
    plain = on(device)
    with boosted(model=on(device), cache=cache, policy=ReusePolicy(tiers=["prefix"], audit_rate=0.0)) as model:
        logits = model.generate(ids, **GREEDY, return_dict_in_generate=True, output_logits=True).logits[0]
    expected = plain.generate(ids, **GREEDY, return_dict_in_generate=True, output_logits=True).logits[0]
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-3)


def test_several_answers_at_once(device: torch.device) -> None:
    model = on(device)
    model.generation_config.eos_token_id = None
    ids = prompt(*DOCUMENTS)[0].tolist()
    plain = on(device)
    plain.generation_config.eos_token_id = None
    expected = plain.generate(torch.tensor([ids], device=device), do_sample=False, max_new_tokens=8)[0, len(ids) :]
    with runtime_service(model, POLICY) as running:
        answers = [running.client.answer(ids, max_new_tokens=8) for _ in range(2)]
    assert [list(answer.token_ids) for answer in answers] == [expected.tolist()] * 2


def test_a_model_over_several_devices_is_right_or_refused(two_devices: tuple[torch.device, torch.device]) -> None:
    accelerate = pytest.importorskip("accelerate")
    first, second = two_devices
    front = dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.layers.0"), first)
    back = dict.fromkeys(("model.layers.1", "model.layers.2", "model.norm", "lm_head"), second)
    model = accelerate.dispatch_model(tiny_model("llama"), {**front, **back})
    ids = ids_on(first, *DOCUMENTS)
    expected = model.generate(ids, **GREEDY)
    refused = ""
    try:
        with boosted(model=model, policy=POLICY) as fast:
            fast.generate(ids, **GREEDY)
            assert torch.equal(fast.generate(ids, **GREEDY), expected)
    except ModelSupportError as error:
        refused = str(error)
    assert not refused or "device" in refused


def test_free_memory_is_the_devices(cuda: torch.device) -> None:
    free = available_bytes(cuda)
    assert free is not None
    assert 0 < free <= torch.cuda.get_device_properties(cuda).total_memory
