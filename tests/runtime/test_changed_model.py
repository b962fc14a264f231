"""A boosted model that changes: K/V of what it was are never served, and what cannot be followed is said by name."""

import copy

import pytest
import torch
from torch import nn
from transformers.integrations import bitnet

from kvboost.api import engine_of
from kvboost.policy import ReusePolicy
from kvboost.runtime.model.identity import Identity
from kvboost.runtime.model.stamp import Stamp
from kvboost.runtime.model.support import examine
from kvboost.types import Namespace
from tests.boosting import boosted, new_cache, plain, prompt, settle, tokenizer
from tests.tiny_models import tiny_model

LOSSLESS = ReusePolicy(tiers=["prefix", "exact"], recompute_ratio=0.0)
TEXT = prompt("Water runs to the river. " * 6)
NEXT = torch.cat([TEXT, prompt("And then we all went home again.")[:, 1:]], 1)
GREEDY = {"max_new_tokens": 6, "do_sample": False}


def ask(model, ids):
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    settle(model)
    return answer


def right(model, ids):
    return plain(model, ids, attention_mask=torch.ones_like(ids), **GREEDY)


def steps(model):
    """Take one step of an optimiser, as training does."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    model(TEXT, labels=TEXT).loss.backward()
    optimiser.step()
    optimiser.zero_grad()


def loads(model):
    model.load_state_dict(tiny_model("llama", seed=7).state_dict())


def writes_through_data(model):
    for weight in model.parameters():
        weight.data.mul_(1.1)


def writes_one_row(model):
    with torch.no_grad():
        model.model.embed_tokens.weight[TEXT[0, 5]] += 1.0


def points_elsewhere(model):
    projection = model.model.layers[0].self_attn.k_proj
    projection.weight.data = projection.weight.data * 1.1


def replaces_a_parameter(model):
    projection = model.model.layers[0].self_attn.v_proj
    projection.weight = nn.Parameter(projection.weight.detach() * 1.1)


def replaces_a_module(model):
    new = nn.Linear(64, 32, bias=False)
    nn.init.normal_(new.weight, std=0.2)
    model.set_submodule("model.layers.1.self_attn.k_proj", new)


def grows(model):
    model.resize_token_embeddings(520, mean_resizing=False)
    writes_one_row(model)


FOLLOWED = [
    steps,
    loads,
    writes_through_data,
    writes_one_row,
    points_elsewhere,
    replaces_a_parameter,
    replaces_a_module,
    grows,
]


@pytest.mark.parametrize("change", FOLLOWED)
def test_other_weights_get_a_namespace_of_their_own(change):
    with boosted(policy=LOSSLESS) as model:
        ask(model, TEXT)
        before = engine_of(model).namespace.key
        change(model)
        assert torch.equal(ask(model, NEXT), right(model, NEXT))
        assert model.last_reuse.reused_tokens == 0
        assert model.last_reuse.declined == ()
        assert engine_of(model).namespace.key != before
        assert torch.equal(ask(model, NEXT), right(model, NEXT))
        assert model.last_reuse.reused_tokens > 0


def converts(model):
    model.to(torch.bfloat16)


def halves(model):
    model.half()


def turns_otherwise(model):
    model.model.rotary_emb.inv_freq.mul_(0.5)


def configures(model):
    model.config.rms_norm_eps = 0.1


def sets_a_module(model):
    model.model.layers[1].self_attn.scaling = 0.5


def other_attention(model):
    model.set_attn_implementation("eager")


def hooks(model):
    model.model.layers[0].register_forward_hook(lambda module, args, output: output * 1.5)


def hooks_before(model):
    model.model.layers[1].register_forward_pre_hook(lambda module, args: None)


def patches(model):
    layer, own = model.model.layers[0].mlp, model.model.layers[0].mlp.forward
    layer.forward = lambda hidden: 2.0 * own(hidden)


def replaces_a_kind(model):
    model.set_submodule("model.layers.0.mlp.act_fn", nn.Tanh())


def offloads(model):
    from accelerate import cpu_offload

    cpu_offload(model, execution_device="cpu")


DECLINED = {
    converts: "float32 on cpu at boost() and is bfloat16",
    halves: "float16",
    turns_otherwise: "frequencies",
    configures: "configuration",
    sets_a_module: "model.layers.1.self_attn or its settings",
    other_attention: "attention implementation",
    hooks: "forward hooks or the forward of model.layers.0",
    hooks_before: "forward hooks or the forward of model.layers.1",
    patches: "forward of model.layers.0.mlp",
    replaces_a_kind: "model.layers.0.mlp.act_fn",
    offloads: "on meta",
}


@pytest.mark.parametrize("change", DECLINED)
def test_what_was_never_examined_is_declined_by_name(change):
    with boosted(policy=LOSSLESS) as model:
        ask(model, TEXT)
        stored = engine_of(model).counters.snapshot()["stored_chunks"]
        change(model)
        answer = ask(model, NEXT)
        assert model.last_reuse.reused_tokens == 0
        (reason,) = model.last_reuse.declined
        assert DECLINED[change] in reason
        assert "boost it again" in reason
        assert engine_of(model).counters.snapshot()["stored_chunks"] == stored
        assert torch.equal(answer, right(model, NEXT))


def test_dropout_in_a_part_of_the_model_is_declined_by_name():
    model = tiny_model("llama", attention_dropout=0.5)
    with boosted(policy=LOSSLESS, model=model):
        ask(model, TEXT)
        model.model.layers[1].train()
        ask(model, NEXT)
        assert model.last_reuse.reused_tokens == 0
        assert model.last_reuse.declined[0].startswith("model.layers.1.self_attn is in training mode")
        model.eval()
        assert torch.equal(ask(model, NEXT), right(model, NEXT))
        assert model.last_reuse.reused_tokens > 0


def test_training_mode_without_dropout_in_a_part_is_no_obstacle():
    with boosted(policy=LOSSLESS) as model:
        ask(model, TEXT)
        model.model.layers[1].train()
        assert torch.equal(ask(model, NEXT), right(model, NEXT))
        assert model.last_reuse.reused_tokens > 0


def test_a_model_in_training_mode_is_boosted_as_it_will_serve():
    model = tiny_model("llama", attention_dropout=0.5).train()
    with boosted(policy=LOSSLESS, model=model):
        assert all(module.training for module in model.modules())
        assert engine_of(model).support.reason == ""
        ask(model, TEXT)
        assert "training mode" in model.last_reuse.declined[0]
        model.eval()
        ask(model, TEXT)
        ask(model, NEXT)
        assert model.last_reuse.reused_tokens > 0


@pytest.mark.parametrize("returns", [False, True], ids=["plain", "dict"])
@pytest.mark.parametrize("rows", [1, 2])
def test_what_ran_while_the_model_changed_is_not_stored(rows, returns):
    with boosted(policy=LOSSLESS) as model:
        engine = engine_of(model)

        def step(ids, scores, **_):
            model.model.layers[1].self_attn.k_proj.weight.add_(0.01)
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        with torch.no_grad():
            model.generate(TEXT.repeat(rows, 1), stopping_criteria=[step], return_dict_in_generate=returns, **GREEDY)
        settle(model)
        counts = engine.counters.snapshot()
        assert counts["unstored_changed"] == rows
        assert counts.get("stored_chunks", 0) == 0
        assert torch.equal(ask(model, NEXT), right(model, NEXT))
        assert model.last_reuse.reused_tokens == 0


def test_a_step_between_the_answer_and_its_put_keeps_them_in_the_old_namespace():
    with boosted(policy=LOSSLESS) as model:
        engine = engine_of(model)
        weight = model.model.layers[1].self_attn.k_proj.weight
        kept = weight.detach().clone()
        with engine.writer.held(), torch.no_grad():
            model.generate(TEXT, **GREEDY)
            weight.add_(0.5)
        assert torch.equal(ask(model, NEXT), right(model, NEXT))
        assert model.last_reuse.reused_tokens == 0
        with torch.no_grad():
            weight.copy_(kept)
        assert torch.equal(ask(model, NEXT), right(model, NEXT))
        assert model.last_reuse.reused_tokens > 0


def test_going_back_to_earlier_weights_goes_back_to_their_chunks():
    with boosted(policy=LOSSLESS) as model:
        state = copy.deepcopy(model.state_dict())
        ask(model, TEXT)
        loads(model)
        ask(model, TEXT)
        model.load_state_dict(state)
        assert torch.equal(ask(model, NEXT), right(model, NEXT))
        assert model.last_reuse.reused_tokens > 0


def test_training_leaves_no_namespaces_behind_in_a_cache_of_its_own(monkeypatch):
    monkeypatch.setattr("kvboost.runtime.serve.follow.KEPT_NAMESPACES", 2)
    from kvboost.api import boost, unboost
    from tests.boosting import segmenter

    model = tiny_model("llama")
    boost(model, tokenizer(), policy=LOSSLESS, segmenter=segmenter())
    try:
        for _ in range(4):
            ask(model, TEXT)
            writes_one_row(model)
        ask(model, TEXT)
        assert len(engine_of(model).cache.stats().namespaces) <= 2
    finally:
        unboost(model)


def test_a_cache_that_does_not_take_the_new_namespace_costs_the_reuse_alone(monkeypatch):
    from kvboost.errors import CacheUnavailableError

    cache = new_cache()
    with boosted(policy=LOSSLESS, cache=cache) as model:
        ask(model, TEXT)
        loads(model)

        def refuse(namespace: Namespace) -> None:
            raise CacheUnavailableError("it is away")

        with monkeypatch.context() as patched:
            patched.setattr(cache, "open", refuse)
            assert torch.equal(ask(model, NEXT), right(model, NEXT))
            assert "did not take its new namespace: it is away" in model.last_reuse.declined[0]
        ask(model, NEXT)
        ask(model, NEXT)
        assert model.last_reuse.reused_tokens > 0


def test_hooks_put_on_before_keep_their_model_to_itself():
    cache = new_cache()
    models = [tiny_model("llama"), tiny_model("llama")]
    for factor, model in enumerate(models, 2):
        model.model.layers[0].mlp.register_forward_hook(lambda module, args, output, by=factor: by * output)
    with (
        boosted(policy=LOSSLESS, cache=cache, model=models[0]),
        boosted(policy=LOSSLESS, cache=cache, model=models[1]),
    ):
        ask(models[0], TEXT)
        assert torch.equal(ask(models[1], NEXT), right(models[1], NEXT))
        assert models[1].last_reuse.reused_tokens == 0
        assert torch.equal(ask(models[0], NEXT), right(models[0], NEXT))
        assert models[0].last_reuse.reused_tokens > 0


def test_hooks_of_transformers_itself_are_no_change():
    with boosted(policy=LOSSLESS) as model:
        ask(model, TEXT)
        model(TEXT, output_hidden_states=True, output_attentions=False)  # leaves hooks on the layers
        assert any(layer._forward_hooks for layer in model.modules() if layer is not model)
        assert torch.equal(ask(model, NEXT), right(model, NEXT))
        assert model.last_reuse.reused_tokens > 0


@torch.compiler.set_stance("force_eager")
def test_compiling_is_no_change():
    with boosted(policy=LOSSLESS) as model:
        ask(model, TEXT)
        model.forward = torch.compile(model.forward)
        model.model.layers[0].compile()
        ask(model, NEXT)
        assert model.last_reuse.reused_tokens > 0
        assert torch.compile(model).last_reuse is model.last_reuse


def quantised(seed):
    """Return a model whose linear weights are buffers, as BitNet, AWQ and GPTQ keep them."""
    model, generator = tiny_model("llama"), torch.Generator().manual_seed(seed)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and "lm_head" not in name:
            layer = bitnet.BitLinear(module.in_features, module.out_features, False, dtype=torch.float32)
            ternary = torch.randint(-1, 2, (module.out_features, module.in_features), generator=generator).float()
            layer.weight.data = bitnet.pack_weights(ternary)
            layer.weight_scale.data = torch.tensor([8.0])
            model.set_submodule(name, layer)
    return model.eval()


def key_of(model):
    return Identity(model, tokenizer(), examine(model), "").now().namespace.key


@torch.compiler.set_stance("force_eager")
def test_quantised_models_differ_by_their_buffers():
    assert key_of(quantised(1)) == key_of(quantised(1))
    assert key_of(quantised(1)) != key_of(quantised(2))
    changed = quantised(1)
    changed.model.layers[1].mlp.up_proj.weight[0, 0] ^= 1
    assert key_of(changed) != key_of(quantised(1))


class Wrapped(torch.Tensor):
    """A tensor made of two others, as torchao's quantised weights are."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data, scale):
        self.data_part, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["data_part", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(value):
            return value.data_part.to(value.scale.dtype) * value.scale if isinstance(value, Wrapped) else value

        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Wrapped(args[0].data_part, args[0].scale)
        return func(*map(unwrap, args), **(kwargs or {}))


def wrapped(scale=0.01):
    model = tiny_model("llama")
    projection = model.model.layers[1].self_attn.k_proj
    data = (projection.weight.detach() * 100).round().to(torch.int8)
    projection.weight = nn.Parameter(Wrapped(data, torch.tensor(scale)), requires_grad=False)
    return model


def test_a_tensor_made_of_others_is_read_whole_and_watched():
    assert key_of(wrapped()) == key_of(wrapped())
    assert key_of(wrapped(0.02)) != key_of(wrapped())
    model = wrapped()
    identity = Identity(model, tokenizer(), examine(model), "")
    before = identity.now().namespace.key
    model.model.layers[1].self_attn.k_proj.weight.scale.mul_(2.0)
    assert identity.now().namespace.key == key_of(wrapped(0.02)) != before


def test_what_hangs_on_a_parameter_counts():
    # bitsandbytes keeps the scales of an int8 weight there.
    models = [tiny_model("llama"), tiny_model("llama")]
    for scale, model in enumerate(models):
        model.model.layers[0].self_attn.k_proj.weight.SCB = torch.tensor([float(scale)])
    assert key_of(models[0]) != key_of(models[1])


def test_tensors_made_in_inference_mode_are_watched_too():
    with torch.inference_mode():
        model = tiny_model("llama")
    identity = Identity(model, tokenizer(), examine(model), "")
    before = identity.now().namespace.key
    assert identity.now().namespace.key == before
    with torch.inference_mode():
        model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
    assert identity.now().namespace.key != before


def test_asking_reads_nothing_while_nothing_changes(monkeypatch):
    model = tiny_model("llama")
    identity = Identity(model, tokenizer(), examine(model), "")
    first = identity.now()
    monkeypatch.setattr("kvboost.runtime.model.portrait.digest_of", pytest.fail)
    for _ in range(3):
        model(TEXT)
        assert identity.now() is first
    assert Stamp(model).holds()


def test_only_what_was_written_is_read_again(monkeypatch):
    model = tiny_model("llama")
    identity = Identity(model, tokenizer(), examine(model), "")
    identity.now()
    read = []
    from kvboost.runtime.model import portrait

    own = portrait.digest_of
    monkeypatch.setattr(portrait, "digest_of", lambda tensor: read.append(tensor) or own(tensor))
    writes_one_row(model)
    identity.now()
    assert len(read) == 1
    assert read[0] is model.model.embed_tokens.weight
