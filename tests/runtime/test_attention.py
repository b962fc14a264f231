"""Recording attention: the weights are the model's own, and nobody else notices."""

import threading

import pytest
import torch
from transformers import DynamicCache

from kvboost.runtime.attention.masks import position_masks
from kvboost.runtime.attention.recording import AttentionRecorder, recording
from kvboost.runtime.kv.slab import SlabCache, SplicePass
from kvboost.runtime.model.support import examine
from tests.tiny_models import SLIDING, SUPPORTED, random_ids, tiny_model

LENGTH = 80
IDS = random_ids(LENGTH)
QUESTION = torch.arange(70, LENGTH)


def recorded(model, ids=IDS, question=QUESTION):
    """Return what the question's tokens attend to, over the model's own K/V of everything before."""
    full = DynamicCache()
    with torch.no_grad():
        model(input_ids=ids, cache=full, use_cache=True)
        slab = SlabCache(examine(model).layout, LENGTH)
        for layer, other in zip(slab.layers, full.layers, strict=True):
            layer.key_buffer[:] = other.keys
            layer.value_buffer[:] = other.values
        slab.set_splice(SplicePass(question, LENGTH))
        recorder = AttentionRecorder(torch.zeros(LENGTH))
        mask = position_masks(model, question, LENGTH)
        with recording(model, recorder):
            logits = model(
                input_ids=ids[:, question],
                position_ids=question[None],
                attention_mask=mask,
                cache=slab,
                use_cache=True,
            ).logits
    return recorder, logits


def reference(arch, **settings):
    """Return the attention summed over layers, from an eager full forward."""
    model = tiny_model(arch, attn_implementation="eager", **settings)
    with torch.no_grad():
        output = model(input_ids=IDS, output_attentions=True, use_cache=False)
    return sum(layer[0, :, QUESTION].mean(dim=(0, 1)) for layer in output.attentions), output.logits[:, QUESTION]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("arch", [*SUPPORTED, *SLIDING])
def test_weights_and_logits_are_those_of_an_eager_forward(arch, attention):
    if (arch, attention) == ("gemma2", "sdpa"):
        pytest.skip("has eager attention alone")
    recorder, logits = recorded(tiny_model(arch, attn_implementation=attention))
    weights, expected = reference(arch)
    torch.testing.assert_close(recorder.total, weights, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-3)
    assert recorder.layers == tiny_model(arch).config.num_hidden_layers


def test_what_a_token_carries_is_its_attention_times_the_norm_of_its_value():
    recorder = AttentionRecorder(torch.zeros(4))
    weights = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
    values = torch.eye(4).repeat(2, 1, 1) * torch.tensor([1.0, 1.0, 2.0, 4.0])[:, None]
    recorder.add(weights, values)
    recorder.add(weights, values.half())
    torch.testing.assert_close(recorder.carried, recorder.total * torch.tensor([0.5, 0.5, 1.0, 2.0]))
    assert recorder.layers == 2


def test_each_query_gives_one_unit_of_attention_a_layer():
    recorder, _ = recorded(tiny_model("llama"))
    torch.testing.assert_close(recorder.total.sum(), torch.tensor(3.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_fp32(dtype):
    recorder, _ = recorded(tiny_model("llama", dtype))
    assert recorder.total.dtype == torch.float32
    torch.testing.assert_close(recorder.total.sum(), torch.tensor(3.0), atol=1e-3, rtol=0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_implementation_is_restored_also_after_an_error(attention):
    model = tiny_model("llama", attn_implementation=attention)
    outside_vocabulary = torch.tensor([[10_000]])
    with pytest.raises(IndexError), recording(model, AttentionRecorder(torch.zeros(1))):
        model(input_ids=outside_vocabulary)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_another_thread_computes_as_ever_and_is_not_recorded(attention):
    model = tiny_model("llama", attn_implementation=attention)
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
    recorder = AttentionRecorder(torch.zeros(LENGTH))
    found = []

    @torch.no_grad()
    def forward():
        positions = torch.arange(LENGTH)
        mask = position_masks(model, positions, LENGTH)
        found.append(model(input_ids=IDS).logits)
        found.append(model(input_ids=IDS, position_ids=positions[None], attention_mask=mask).logits)

    with recording(model, recorder):
        thread = threading.Thread(target=forward)
        thread.start()
        thread.join()
    assert recorder.layers == 0
    for logits in found:
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
