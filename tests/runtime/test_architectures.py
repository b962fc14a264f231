"""Architectures of transformers, one of each kind: boosted and right, or refused in a sentence; never a raw error.

``ARCHITECTURES=all`` runs every causal model that can be built small (two minutes).
"""

import os

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, BertConfig, BertModel, T5Config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvboost.api import boost, engine_of, unboost
from kvboost.errors import ModelSupportError
from kvboost.policy import ReusePolicy
from kvboost.runtime.model.identity import Identity
from kvboost.runtime.model.support import examine
from kvboost.runtime.prepare.startup_check import pass_startup_check, run_gate
from tests.boosting import new_cache, plain, settle, tokenizer
from tests.tiny_models import _COMMON, SLIDING, SUPPORTED, TRAPS, UNSUPPORTED, random_ids, tiny_model

PREFIX = ReusePolicy(tiers=["prefix"])
GREEDY = {"max_new_tokens": 4, "do_sample": False}
_SMALL = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_num_experts": 4,
    "shared_expert_intermediate_size": 32,
    "head_dim": 16,
    "dim_head": 16,
    "dim_ff": 96,
    "kv_channels": 16,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": 32,
}
MOST_PARAMETERS = 50_000_000
# Each stands for a kind: keyword masks, experts, masks of its own, attention in both directions, positions that count
# from the padding token, states that no cache holds, K/V of other shapes, several calls a layer.
KINDS = ["afmoe", "doge", "jetmoe", "cpmant", "bert", "roberta", "opt", "gemma4_text", "falcon_h1", "xlm"]
TESTED = {*SUPPORTED, *SLIDING, *TRAPS, *UNSUPPORTED}
WANTED = (
    sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - TESTED) if os.environ.get("ARCHITECTURES") == "all" else KINDS
)


def small(name):
    """Return a random model of few parameters, or skip where one set of settings does not make one that generates."""
    known = AutoConfig.for_model(name)
    keys = set(known.to_dict()) | set(known.attribute_map)
    settings = _COMMON | {key: value for key, value in _SMALL.items() if key in keys}
    try:
        config = AutoConfig.for_model(name, **settings)
        with torch.device("meta"):
            count = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
        if count > MOST_PARAMETERS:
            pytest.skip(f"{count} parameters")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        ids = random_ids(80, 1)
        model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    except Exception as error:  # noqa: BLE001 - whatever keeps the plain model from generating
        pytest.skip(f"does not generate plainly: {type(error).__name__}")
    return model


@pytest.mark.parametrize("name", WANTED)
def test_an_architecture_is_right_or_refused(name):
    model = small(name)
    before = set(vars(model)), model.config._attn_implementation
    first, rest = random_ids(60, 1), random_ids(20, 2)
    ids = torch.cat([first, rest], 1)
    try:
        boost(model, tokenizer(), new_cache(), PREFIX)
    except ModelSupportError:
        assert (set(vars(model)), model.config._attn_implementation) == before
        return
    model.generate(first, attention_mask=torch.ones_like(first), **GREEDY)
    key = settle(model).namespace.key
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    report = model.last_reuse
    assert report.reused_tokens > 0 or report.declined
    assert report.fallback is None
    assert engine_of(model).namespace.key == key
    unboost(model)
    assert torch.equal(answer, plain(model, ids, attention_mask=torch.ones_like(ids), **GREEDY))


def test_an_encoder_is_refused():
    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, vocab_size=512
    )
    with pytest.raises(ModelSupportError, match="BertModel does not generate text"):
        boost(BertModel(config).eval(), tokenizer(), new_cache())


def test_an_encoder_with_a_language_model_head_is_refused():
    with pytest.raises(ModelSupportError, match="attention is not causal"):
        boost(small("megatron-bert"), tokenizer(), new_cache())


def test_an_encoder_decoder_is_refused():
    config = T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=512)
    with pytest.raises(ModelSupportError, match="encoder-decoder"):
        boost(AutoModelForSeq2SeqLM.from_config(config).eval(), tokenizer(), new_cache())


def test_a_model_whose_own_code_fails_is_refused_with_its_words(monkeypatch):
    model = tiny_model("llama")
    monkeypatch.setattr(type(model.model.layers[0].mlp), "forward", lambda *_: 1 / 0)
    with pytest.raises(ModelSupportError, match="ZeroDivisionError: division by zero"):
        boost(model, tokenizer(), new_cache())


@pytest.mark.parametrize("where", ["disk", "cpu"])
def test_offloaded_layers_are_refused_and_others_served(where, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    tiny_model("llama").save_pretrained(tmp_path / "tiny")
    parts = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    layers = {f"model.layers.{i}": "cpu" for i in range(3)}
    load = AutoModelForCausalLM.from_pretrained
    if where == "disk":
        device_map = {**parts, **layers, "model.layers.1": "disk"}
        model = load(tmp_path / "tiny", device_map=device_map, offload_folder=tmp_path / "off").eval()
    else:
        model = load(tmp_path / "tiny").eval()
        accelerate.cpu_offload(model, execution_device="cpu")
    with pytest.raises(ModelSupportError, match=r"offloaded weights \(model\..*device_map that offloads nothing"):
        boost(model, tokenizer(), new_cache())
    whole = load(tmp_path / "tiny", device_map={**parts, **layers}).eval()  # with accelerate's hooks
    boost(whole, tokenizer(), new_cache(), PREFIX)
    ids = random_ids(120, 1)
    for _ in range(2):
        answer = whole.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
        settle(whole)
    assert whole.last_reuse.reused_tokens > 0
    assert torch.equal(answer, plain(whole, ids, attention_mask=torch.ones_like(ids), **GREEDY))
    unboost(whole)


WINDOW = 128


@pytest.mark.parametrize("window", [16, WINDOW])
def test_a_window_is_found_to_be_kept_however_long_it_is(window):
    model = tiny_model("mistral", sliding_window=window)
    assert run_gate(model, examine(model)) == ""


@pytest.mark.parametrize("window", [16, WINDOW])
def test_a_window_that_the_model_ignores_is_found_however_long_it_is(window, tmp_path):
    model = tiny_model("llama")
    model.config.sliding_window = window  # left over from another architecture
    support = examine(model)
    # A short one shows in the prompt that is checked first.
    assert ("look back 128 tokens" if window == WINDOW else "recompute-everything") in run_gate(model, support)
    namespace = Identity(model, tokenizer(), support, "").now().namespace
    # generate() itself would drop K/V that this model's masks let it see.
    with pytest.raises(ModelSupportError, match="names a window that the model does not keep"):
        pass_startup_check(model, support, namespace, tmp_path)
