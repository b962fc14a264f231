"""Adapters of peft, put on before and after boost(): each has K/V of its own, and none is served another's."""

from contextlib import contextmanager

import peft
import pytest
import torch

from kvboost.api import boost, engine_of, unboost
from kvboost.errors import InputError, ModelSupportError
from kvboost.policy import ReusePolicy
from kvboost.runtime.model.identity import Identity
from kvboost.runtime.model.support import examine
from tests.boosting import new_cache, plain, prompt, segmenter, settle, tokenizer
from tests.tiny_models import tiny_model

LOSSLESS = ReusePolicy(tiers=["prefix", "exact"], recompute_ratio=0.0)
ATTENTION = ["q_proj", "k_proj", "v_proj"]
TEXT = prompt("Water runs to the river. " * 6)
NEXT = torch.cat([TEXT, prompt("And then we all went home again.")[:, 1:]], 1)

KINDS = {
    "lora": lambda: peft.LoraConfig(r=4, target_modules=ATTENTION, init_lora_weights=False),
    "dora": lambda: peft.LoraConfig(r=4, target_modules=ATTENTION, init_lora_weights=False, use_dora=True),
    "bias": lambda: peft.LoraConfig(r=4, target_modules=ATTENTION, init_lora_weights=False, bias="all"),
    "saved": lambda: peft.LoraConfig(
        r=4, target_modules=ATTENTION, init_lora_weights=False, modules_to_save=["embed_tokens"]
    ),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj", "v_proj"], feedforward_modules=[], init_ia3_weights=False),
    "loha": lambda: peft.LoHaConfig(r=4, target_modules=ATTENTION, init_weights=False),
}


def adapted(model, kind="lora", seed=0, name="default"):
    """Put an adapter with wide random weights on ``model``."""
    torch.manual_seed(seed)
    wrapped = peft.get_peft_model(model, KINDS[kind](), adapter_name=name).eval()
    widen(wrapped, seed)
    return wrapped


@torch.no_grad()
def widen(wrapped, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, weight in wrapped.named_parameters():
        if any(part in name for part in ("lora_", "ia3_", "hada_", "modules_to_save")):
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator) + ("ia3" in name))


@contextmanager
def served(model=None):
    model = tiny_model("llama") if model is None else model
    boost(model, tokenizer(), new_cache(), LOSSLESS, segmenter=segmenter())
    try:
        yield model
    finally:
        unboost(model)


def ask(model, ids, **settings):
    answer = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, **settings
    )
    settle(model)
    return answer


def right(base, ids):
    """Return what the plain model answers."""
    return plain(base, ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)


def check(model, base, ids, reuses):
    answer = ask(model, ids)
    report = base.last_reuse
    assert torch.equal(answer, right(base, ids))
    assert (report.reused_tokens > 0) is reuses, report
    return report


def key_of(model):
    base = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    return Identity(base, tokenizer(), examine(base), "").now().namespace.key


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_put_on_after_boost_gets_a_namespace_of_its_own(kind):
    with served() as base:
        ask(base, TEXT)
        before = engine_of(base).namespace.key
        wrapped = adapted(base, kind)
        report = check(wrapped, base, NEXT, reuses=False)
        assert report.declined == ()
        assert engine_of(base).namespace.key != before
        check(wrapped, base, NEXT, reuses=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_peft_model_is_boosted_like_its_model(kind):
    base = tiny_model("llama")
    wrapped = adapted(base, kind)
    with served(wrapped):
        assert wrapped.last_reuse is None
        check(wrapped, base, TEXT, reuses=False)
        check(wrapped, base, NEXT, reuses=True)
        with wrapped.disable_adapter():
            check(wrapped, base, NEXT, reuses=False)
        check(wrapped, base, NEXT, reuses=True)
    assert not hasattr(wrapped, "kvboost_engine")


def test_each_of_several_adapters_goes_on_with_what_is_its_own():
    with served() as base:
        wrapped = adapted(base, name="first", seed=1)
        torch.manual_seed(2)
        wrapped.add_adapter("second", KINDS["lora"]())
        wrapped.eval()
        for name in ("first", "second"):
            wrapped.set_adapter(name)
            check(wrapped, base, TEXT, reuses=False)
        for name in ("first", "second"):
            wrapped.set_adapter(name)
            check(wrapped, base, NEXT, reuses=True)
        wrapped.base_model.set_adapter(["first", "second"])
        check(wrapped, base, NEXT, reuses=False)


def test_an_adapter_that_is_only_loaded_changes_nothing():
    with served() as base:
        wrapped = adapted(base, name="first")
        check(wrapped, base, TEXT, reuses=False)
        wrapped.add_adapter("second", KINDS["lora"]())
        wrapped.eval()
        check(wrapped, base, NEXT, reuses=True)


def test_merging_and_scaling_are_noticed():
    with served() as base:
        wrapped = adapted(base)
        keys = [engine_of(base).namespace.key]
        for change in (
            lambda: None,
            lambda: wrapped.base_model.model.model.layers[1].self_attn.k_proj.scale_layer(0.5),
            wrapped.merge_adapter,
            wrapped.unmerge_adapter,
            wrapped.merge_and_unload,
        ):
            change()
            check(wrapped if hasattr(wrapped, "peft_config") else base, base, NEXT, reuses=False)
            keys.append(engine_of(base).namespace.key)
        assert len(set(keys)) == len(keys)


def test_a_delta_too_small_for_the_sampled_bytes_is_noticed_when_it_is_merged():
    base = tiny_model("llama", torch.bfloat16)
    wrapped = adapted(base)
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                weight.zero_()
                weight[0, 0] = 1.0  # only the first row of each matrix changes
    identity = Identity(base, tokenizer(), examine(base), "")
    before = identity.now().namespace.key
    wrapped.merge_adapter()
    merged = identity.now().namespace.key
    assert merged != before
    assert merged == key_of(wrapped)


def test_equal_names_and_other_weights_differ_wherever_the_weights_differ():
    keys = set()
    for row in (None, 0, 1, 2, 3):
        wrapped = adapted(tiny_model("llama"))
        if row is not None:
            with torch.no_grad():
                wrapped.base_model.model.model.layers[2].self_attn.v_proj.lora_B["default"].weight[31, row] += 0.5
        keys.add(key_of(wrapped))
    assert len(keys) == 5
    assert key_of(adapted(tiny_model("llama"))) in keys


def test_an_adapter_put_into_the_model_without_a_wrapper():
    # As load_adapter of transformers does, which wants a newer peft.
    with served() as base:
        ask(base, TEXT)
        peft.inject_adapter_in_model(KINDS["lora"](), base)
        widen(base.eval(), 0)
        check(base, base, NEXT, reuses=False)
        check(base, base, NEXT, reuses=True)


PROMPTS = {
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "p-tuning": lambda: peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=16),
}


@pytest.mark.parametrize("kind", ["prompt", "p-tuning"])
def test_virtual_tokens_are_declined_by_name(kind):
    with served() as base:
        ask(base, TEXT)
        wrapped = peft.get_peft_model(base, PROMPTS[kind]()).eval()
        answer = ask_plainly(wrapped, NEXT)
        assert base.last_reuse.reused_tokens == 0
        assert "virtual tokens" in base.last_reuse.declined[0]
        torch.manual_seed(0)
        again = peft.get_peft_model(tiny_model("llama"), PROMPTS[kind]()).eval()
        again.load_state_dict(wrapped.state_dict(), strict=False)
        assert torch.equal(answer, ask_plainly(again, NEXT))
        check(base, base, NEXT, reuses=True)  # the model itself is untouched


def ask_plainly(model, ids):
    return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)


@pytest.mark.parametrize("kind", PROMPTS)
def test_a_model_with_virtual_tokens_says_what_to_boost(kind):
    wrapped = peft.get_peft_model(tiny_model("llama"), PROMPTS[kind]())
    with pytest.raises(ModelSupportError, match=r"virtual tokens.*get_base_model"):
        boost(wrapped, tokenizer(), new_cache())


def test_adapters_by_row_are_declined_by_name():
    with served() as base:
        wrapped = adapted(base)
        check(wrapped, base, TEXT, reuses=False)
        mixed = ask(wrapped, NEXT, adapter_names=["__base__"])
        assert base.last_reuse.reused_tokens == 0
        assert "hooks" in base.last_reuse.declined[0]
        with wrapped.disable_adapter():
            assert torch.equal(mixed, right(base, NEXT))
        check(wrapped, base, NEXT, reuses=True)


def test_what_is_no_model_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="must be a model of transformers"):
        boost(torch.nn.Linear(2, 2), tokenizer(), new_cache())
