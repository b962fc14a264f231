"""The namespace holds everything that K/V depend on, and nothing else."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvboost.runtime.model.fingerprint import namespace_of, tokenizer_digest
from kvboost.runtime.model.support import examine
from tests.boosting import tokenizer
from tests.tiny_models import tiny_model, tiny_tokenizer


def key_of(model, tenant="", tok=None):
    return namespace_of(model, tok or tokenizer(), examine(model), tenant).key


BASE = key_of(tiny_model("llama"))


def test_the_same_model_built_twice_has_the_same_key():
    assert key_of(tiny_model("llama")) == BASE


def test_a_model_loaded_twice_has_the_same_key(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path)
    keys = {key_of(AutoModelForCausalLM.from_pretrained(tmp_path)) for _ in range(2)}
    assert len(keys) == 1


def test_a_model_loaded_from_two_places_has_the_same_key(tmp_path):
    """Hosts that share a cache seldom keep a model under the same path."""
    keys = set()
    for name in ("a", "b"):
        tiny_model("llama").save_pretrained(tmp_path / name / "tiny")
        keys.add(key_of(AutoModelForCausalLM.from_pretrained(tmp_path / name / "tiny")))
    assert len(keys) == 1


OTHERS = {
    "weights": lambda: tiny_model("llama", seed=1),
    "dtype": lambda: tiny_model("llama", torch.bfloat16),
    "half dtype": lambda: tiny_model("llama", torch.float16),
    "rope scaling": lambda: tiny_model("llama", rope="linear"),
    "rope base": lambda: tiny_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    "unsupported rope scaling": lambda: tiny_model("llama", rope="dynamic"),
    "window": lambda: tiny_model("mistral", sliding_window=7),
    "norm epsilon": lambda: tiny_model("llama", rms_norm_eps=1e-3),
    "architecture": lambda: tiny_model("qwen2"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_changes_kv_changes_the_key(name):
    assert key_of(OTHERS[name]()) != BASE


def test_windows_of_different_lengths_differ():
    assert key_of(tiny_model("mistral", sliding_window=7)) != key_of(tiny_model("mistral", sliding_window=9))


def test_all_differ_from_one_another():
    keys = [BASE, *(key_of(make()) for make in OTHERS.values())]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", ["embed_tokens", "layers.1.self_attn.v_proj", "norm", "layers.2.mlp.down_proj"])
def test_a_fine_tune_of_any_layer_changes_the_key(name):
    model = tiny_model("llama")
    for full_name, parameter in model.named_parameters():
        if name in full_name:
            parameter.data += 0.01
    assert key_of(model) != BASE


def test_computing_does_not_change_the_key():
    model = tiny_model("llama")
    model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, do_sample=False)
    model.generation_config.temperature = 0.3
    assert key_of(model) == BASE


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_frequencies_that_follow_the_prompt_do_not_change_the_key(scaling):
    model = tiny_model("llama", rope=scaling)
    before = key_of(model)
    model.generate(torch.arange(5, 300)[None], max_new_tokens=3, do_sample=False)
    assert key_of(model) == before


def test_tenants_differ():
    model = tiny_model("llama")
    assert len({key_of(model), key_of(model, "a"), key_of(model, "b")}) == 3


@pytest.mark.parametrize(
    "change",
    [{"bos_token": None}, {"additional_special_tokens": ["<tool>"]}, {"eos_token": "<|user|>"}],
    ids=["bos", "added token", "eos"],
)
def test_tokenizers_differ(change):
    assert tokenizer_digest(tiny_tokenizer(**change)) != tokenizer_digest(tokenizer())


def test_the_same_tokenizer_trained_twice_has_the_same_digest():
    assert tokenizer_digest(tiny_tokenizer()) == tokenizer_digest(tokenizer())
