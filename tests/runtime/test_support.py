"""What a model is found to support, and what is refused by name."""

import pytest
import torch
from torch import nn

from kvboost.errors import ModelSupportError
from kvboost.runtime.model.rope import Pairing
from kvboost.runtime.model.support import APPROXIMATE, examine
from kvboost.types import Tier
from tests.tiny_models import ROPE_SCALING, SLIDING, SUPPORTED, TRAPS, tiny_model

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = [str(d).removeprefix("torch.") for d in DTYPES]
EVERY_TIER = frozenset({Tier.PREFIX}) | APPROXIMATE
PREFIX_ALONE = frozenset({Tier.PREFIX})


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("arch", [*SUPPORTED, *SLIDING])
def test_rope_models_get_every_tier(arch, dtype):
    support = examine(tiny_model(arch, dtype))
    assert (support.tiers, support.reason) == (EVERY_TIER, "")
    assert all(rope is not None for rope in support.ropes)
    assert support.layout.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("arch", "pairing", "rotary_dim"),
    [
        ("llama", Pairing.HALF, 16),
        ("phi", Pairing.HALF, 8),
        ("gpt_neox", Pairing.HALF, 4),
        ("cohere", Pairing.INTERLEAVED, 16),
        ("glm4", Pairing.INTERLEAVED, 8),
    ],
)
def test_pairing_and_rotary_dimensions_are_found(arch, pairing, rotary_dim):
    rope = examine(tiny_model(arch)).ropes[0]
    assert (rope.pairing, rope.rotary_dim) == (pairing, rotary_dim)


def test_layers_with_another_base_are_told_apart():
    sliding, full, *_ = examine(tiny_model("gemma3")).ropes
    assert sliding.inv_freq != full.inv_freq


@pytest.mark.parametrize("arch", ["smollm3", "cohere2"])
def test_layers_without_rope_are_found(arch):
    support = examine(tiny_model(arch))
    assert support.tiers == EVERY_TIER
    assert None in support.ropes
    assert len(support.rope_layers()) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("scaling", [s for s in ROPE_SCALING if s not in ("dynamic", "longrope")])
def test_rope_scaling_that_can_be_realigned_is_not_switched_off(scaling, dtype):
    assert examine(tiny_model("llama", dtype, rope=scaling)).tiers == EVERY_TIER


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize(
    ("arch", "scaling", "named"),
    [
        ("llama", "dynamic", "dynamic NTK"),
        ("llama", "longrope", "LongRoPE"),
        ("gpt2", None, "learned positions"),
        ("bloom", None, "ALiBi"),
        ("deepseek_v3", None, "multi-head latent attention"),
    ],
)
def test_what_cannot_be_realigned_is_refused_by_name(arch, scaling, named, dtype):
    support = examine(tiny_model(arch, dtype, rope=scaling))
    assert not support.tiers & APPROXIMATE
    assert named in support.reason


@pytest.mark.parametrize("arch", ["gpt2", "bloom", "deepseek_v3"])
def test_refused_models_keep_the_prefix_tier(arch):
    assert examine(tiny_model(arch)).tiers == PREFIX_ALONE


@pytest.mark.parametrize("arch", ["mamba", "falcon_mamba"])
def test_recurrent_models_are_refused_altogether(arch):
    with pytest.raises(ModelSupportError, match="recurrent state"):
        examine(tiny_model(arch))


def test_linear_attention_layers_are_refused_by_name():
    model = tiny_model("llama")
    model.config.layer_types = ["linear_attention", "full_attention", "full_attention"]
    with pytest.raises(ModelSupportError, match="linear_attention"):
        examine(model)


def test_encoder_decoder_models_are_refused():
    model = tiny_model("llama")
    model.config.is_encoder_decoder = True
    with pytest.raises(ModelSupportError, match="encoder-decoder"):
        examine(model)


def test_an_attention_without_masks_by_position_is_refused_by_name():
    model = tiny_model("llama")
    model.config._attn_implementation = "flash_attention_2"
    # The probe itself cannot run here, so the obstacle is asked for alone.
    from kvboost.runtime.model.support import _known_obstacle

    assert "flash_attention_2" in _known_obstacle(model)


def test_unknown_layer_types_keep_the_prefix_tier():
    model = tiny_model("llama")
    model.config.layer_types = ["chunked_attention"] * 3
    assert "chunked_attention" in examine(model).reason


class _Rotary(nn.Module):
    """A rotary embedding that hands the model other angles than its ``inv_freq`` says."""

    def __init__(self, inner, change):
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, x, position_ids, *args):
        return self.change(*self.inner(x, position_ids, *args))


@pytest.mark.parametrize(
    "change",
    [
        lambda cos, sin: (cos.roll(1, -1), sin.roll(1, -1)),
        lambda cos, sin: (cos.flip(-1), sin.flip(-1)),
        lambda cos, sin: (cos, -sin),
        lambda cos, sin: (cos, sin * 1.1),
        lambda cos, sin: ((2 * cos * cos - 1), 2 * sin * cos),
    ],
    ids=["rolled", "flipped", "backwards", "stretched", "doubled"],
)
def test_angles_that_are_not_those_of_inv_freq_are_noticed(change):
    model = tiny_model("llama")
    model.model.rotary_emb = _Rotary(model.model.rotary_emb, change)
    assert "not rotations of each other" in examine(model).reason


def test_a_wrong_base_in_one_layer_only_is_noticed_in_that_layer():
    model = tiny_model("llama")
    attention = model.model.layers[2].self_attn
    inner = attention.forward

    def forward(hidden_states, position_embeddings, *args, **kwargs):
        cos, sin = position_embeddings
        return inner(hidden_states, (cos.flip(-1), sin.flip(-1)), *args, **kwargs)

    attention.forward = forward
    assert examine(model).reason.startswith("layer 2:")


def test_the_probe_leaves_the_model_as_it_was():
    model = tiny_model("gemma3")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    examine(model)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


@pytest.mark.parametrize("arch", TRAPS)
def test_traps_have_a_layout(arch):
    support = examine(tiny_model(arch))
    assert support.layout.num_layers == len(support.ropes) == 3
