"""Calls that reuse cannot serve are passed on unchanged, with a reason."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from kvboost.types import Tier
from tests.boosting import boosted, document, plain, prompt, reused, warm
from tests.tiny_models import tiny_model

IDS = prompt(document(1), document(2))
ARGUMENTS = {"do_sample": False, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def model():
    with boosted() as model:
        warm(model, IDS)
        yield model


def filled(model):
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=IDS[:, :-3], cache=cache, use_cache=True)
    return cache


CALLS = {
    "use_cache": lambda m: {"use_cache": False},
    "cache_implementation": lambda m: {"cache_implementation": "static"},
    "past_key_values": lambda m: {"past_key_values": filled(m)},
    "cache": lambda m: {"cache": StaticCache(config=m.config, max_cache_len=300)},
    "prompt_lookup_num_tokens": lambda m: {"prompt_lookup_num_tokens": 3},
    "assistant_model": lambda m: {"assistant_model": tiny_model("llama", seed=1)},
    "output_attentions": lambda m: {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": lambda m: {"output_hidden_states": True, "return_dict_in_generate": True},
    "position_ids": lambda m: {"position_ids": torch.arange(IDS.shape[1])[None]},
    "guidance_scale": lambda m: {"guidance_scale": 1.5},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_gives_the_plain_result_and_a_reason(model, name):
    expected = plain(model, IDS, **ARGUMENTS, **CALLS[name](model))
    result = model.generate(IDS, **ARGUMENTS, **CALLS[name](model))
    if not isinstance(result, torch.Tensor):
        assert set(result) == set(expected)
        result, expected = result.sequences, expected.sequences
    assert torch.equal(result, expected)
    (reason,) = model.last_reuse.declined
    assert name in reason
    assert model.last_reuse.reused_tokens == 0


def test_embeddings_instead_of_ids(model):
    embeddings = model.get_input_embeddings()(IDS)
    expected = plain(model, inputs_embeds=embeddings, **ARGUMENTS)
    assert torch.equal(model.generate(inputs_embeds=embeddings, **ARGUMENTS), expected)
    assert "inputs_embeds" in model.last_reuse.declined[0]


@pytest.mark.parametrize("kind", ["right padding", "hole", "two-dimensional hole"])
def test_masks_that_are_not_left_padding(model, kind):
    mask = torch.ones_like(IDS)
    if kind == "right padding":
        mask[0, -4:] = 0
    else:
        mask[0, 20:25] = 0
    expected = plain(model, IDS, attention_mask=mask, **ARGUMENTS)
    assert torch.equal(model.generate(IDS, attention_mask=mask, **ARGUMENTS), expected)
    assert "attention mask" in model.last_reuse.declined[0]


def test_a_padding_token_inside_the_prompt_without_a_mask(model):
    ids = IDS.clone()
    ids[0, 30] = model.generation_config.pad_token_id
    expected = plain(model, ids, **ARGUMENTS)
    assert torch.equal(model.generate(ids, **ARGUMENTS), expected)
    assert "attention mask" in model.last_reuse.declined[0]


def test_training_mode(model):
    model.train()
    try:
        model.generate(IDS, **ARGUMENTS)
    finally:
        model.eval()
    assert "training mode" in model.last_reuse.declined[0]


def test_autocast(model):
    other = prompt(document(2), document(1))
    for ids in (IDS, other):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = plain(model, ids, **ARGUMENTS)
            assert torch.equal(model.generate(ids, **ARGUMENTS), expected)
        assert "autocast" in model.last_reuse.declined[0]


def test_use_cache_off_in_the_models_own_configuration(model):
    model.generation_config.use_cache = False
    try:
        model.generate(IDS, **ARGUMENTS)
    finally:
        model.generation_config.use_cache = True
    assert "use_cache" in model.last_reuse.declined[0]


def test_a_declined_call_is_counted_and_the_next_one_reuses(model):
    engine = model.kvboost_engine
    before = engine.counters.snapshot()["requests"]
    model.generate(IDS, use_cache=False, **ARGUMENTS)
    assert engine.counters.snapshot()["requests"] == before + 1
    model.generate(IDS, **ARGUMENTS)
    assert reused(model, Tier.PREFIX) == IDS.shape[1] - 1


def test_a_declined_call_has_a_time_to_first_token(model):
    model.generate(IDS, use_cache=False, **ARGUMENTS)
    assert model.last_reuse.ttft_s > 0.0
    assert model.last_reuse.tokens_by_tier[Tier.COMPUTED] == IDS.shape[1]


def test_the_callers_cache_is_filled_as_before(model):
    ours, theirs = filled(model), filled(model)
    model.generate(IDS, cache=ours, **ARGUMENTS)
    plain(model, IDS, cache=theirs, **ARGUMENTS)
    assert ours.get_seq_length() == theirs.get_seq_length()


def test_off_settings_are_not_taken_for_on(model):
    model.generate(IDS, **ARGUMENTS, output_attentions=False, output_hidden_states=False, use_cache=True)
    assert model.last_reuse.declined == ()
    assert reused(model, Tier.PREFIX) == IDS.shape[1] - 1
