"""Re-rotation against the models' own rotary embedding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from kvboost.runtime.model.rope import Pairing, Rope, rotate, rotated
from kvboost.runtime.model.support import examine
from tests.tiny_models import ROPE_SCALING, SLIDING, SUPPORTED, random_ids, tiny_model

FREQ = tuple(10_000.0 ** (-i / 4) for i in range(4))
ROPES = [Rope(FREQ, Pairing.HALF), Rope(FREQ, Pairing.INTERLEAVED)]
ALIGNED_SCALING = [name for name in ROPE_SCALING if name not in ("dynamic", "longrope")]


def keys_at(model, ids, start):
    """Return layer-0 keys ``[1, kv_heads, T, dim]`` of ``ids`` standing at ``start``."""
    cache = DynamicCache()
    positions = torch.arange(start, start + ids.shape[1])[None]
    with torch.no_grad():
        model(input_ids=ids, position_ids=positions, cache=cache, use_cache=True)
    return cache.layers[0].keys


def moved(keys, rope, shift):
    cos, sin = rope.angles(torch.tensor([shift]))
    return rotated(keys, cos, sin, rope)


def by_definition(keys, rope, positions):
    """Rotate pair by pair in fp64, as the paper writes it."""
    out = keys.double().clone()
    for i, freq in enumerate(rope.inv_freq):
        a, b = (i, i + len(rope.inv_freq)) if rope.pairing is Pairing.HALF else (2 * i, 2 * i + 1)
        angle = positions.double() * freq
        x, y = keys[..., a].double(), keys[..., b].double()
        out[..., a] = x * angle.cos() - y * angle.sin()
        out[..., b] = x * angle.sin() + y * angle.cos()
    return out


def random_keys(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("arch", [*SUPPORTED, *SLIDING])
@pytest.mark.parametrize(("start", "end"), [(0, 200), (300, 7), (17, 18)])
def test_moved_keys_equal_those_the_model_computes_there(arch, start, end):
    model = tiny_model(arch)
    rope = examine(model).ropes[0]
    ids = random_ids(20)
    torch.testing.assert_close(
        moved(keys_at(model, ids, start), rope, end - start), keys_at(model, ids, end), atol=2e-4, rtol=1e-3
    )


@pytest.mark.parametrize("scaling", ALIGNED_SCALING)
def test_moved_keys_equal_fresh_ones_under_rope_scaling(scaling):
    model = tiny_model("llama", rope=scaling)
    ids = random_ids(20)
    fresh = keys_at(model, ids, 301)
    torch.testing.assert_close(moved(keys_at(model, ids, 2), examine(model).ropes[0], 299), fresh, atol=2e-4, rtol=1e-3)


def test_yarn_attention_scaling_is_not_applied_again():
    model = tiny_model("llama", rope="yarn")
    assert model.model.rotary_emb.attention_scaling > 1.0
    keys = keys_at(model, random_ids(8), 5)
    again = moved(moved(keys, examine(model).ropes[0], 100), examine(model).ropes[0], -100)
    torch.testing.assert_close(again.norm(dim=-1), keys.norm(dim=-1), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("arch", ["phi", "glm4", "gpt_neox"])
def test_partial_rotary_leaves_the_other_dimensions_alone(arch):
    model = tiny_model(arch)
    rope = examine(model).ropes[0]
    keys = keys_at(model, random_ids(8), 0)
    assert rope.rotary_dim < keys.shape[-1]
    assert torch.equal(moved(keys, rope, 50)[..., rope.rotary_dim :], keys[..., rope.rotary_dim :])


@pytest.mark.parametrize("rope", ROPES, ids=lambda r: r.pairing.value)
def test_rotation_is_the_papers(rope):
    keys = random_keys(2, 3, 11, 12)
    positions = torch.arange(11) * 37
    cos, sin = rope.angles(positions)
    torch.testing.assert_close(rotated(keys, cos, sin, rope), by_definition(keys, rope, positions).float())


@pytest.mark.parametrize("rope", ROPES, ids=lambda r: r.pairing.value)
def test_rotate_then_select_equals_select_then_rotate(rope):
    keys = random_keys(2, 30, 8)
    chosen = torch.tensor([3, 4, 11, 29])
    cos, sin = rope.angles(torch.arange(30))
    assert torch.equal(
        rotated(keys, cos, sin, rope)[:, chosen], rotated(keys[:, chosen], cos[chosen], sin[chosen], rope)
    )


@given(st.integers(-8000, 8000), st.integers(-8000, 8000), st.sampled_from(ROPES))
@settings(max_examples=50, deadline=None)
def test_rotations_add_up(first, second, rope):
    keys = random_keys(1, 4, 8)
    torch.testing.assert_close(
        moved(moved(keys, rope, first), rope, second), moved(keys, rope, first + second), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("rope", ROPES, ids=lambda r: r.pairing.value)
def test_rotation_by_zero_changes_nothing(rope):
    keys = random_keys(2, 5, 12)
    assert torch.equal(moved(keys, rope, 0), keys)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rope", ROPES, ids=lambda r: r.pairing.value)
def test_half_precision_is_computed_in_fp32_and_cast_once(dtype, rope):
    keys = random_keys(3, 64, 12, dtype=dtype)
    out = torch.empty_like(keys)
    cos, sin = rope.angles(torch.tensor([4321]))
    rotate(keys, cos, sin, rope, out)
    exact = by_definition(keys, rope, torch.full((64,), 4321))
    nearest = exact.to(dtype)
    # Casting once is right to half a step; only where fp32 falls on the other side of a tie may they differ.
    assert (out != nearest).float().mean() < 0.01
    torch.testing.assert_close(out.double(), exact, atol=1e-3, rtol=torch.finfo(dtype).eps)


def test_angles_of_distant_positions_keep_their_precision():
    cos, sin = ROPES[0].angles(torch.tensor([1_000_003]))
    exact = torch.tensor([1_000_003.0], dtype=torch.float64)[:, None] * torch.tensor(FREQ, dtype=torch.float64)
    torch.testing.assert_close(cos.double(), exact.cos(), atol=1e-6, rtol=0)
    torch.testing.assert_close(sin.double(), exact.sin(), atol=1e-6, rtol=0)


def test_the_input_is_not_written_to():
    keys = random_keys(2, 5, 12)
    before = keys.clone()
    moved(keys, ROPES[0], 9)
    assert torch.equal(keys, before)


@pytest.mark.parametrize("wrong", ["pairing", "base"])
def test_a_wrong_rotation_gives_other_keys(wrong):
    model = tiny_model("llama")
    rope = examine(model).ropes[0]
    bad = (
        Rope(rope.inv_freq, Pairing.INTERLEAVED)
        if wrong == "pairing"
        else Rope(tuple(f**1.1 for f in rope.inv_freq), Pairing.HALF)
    )
    ids = random_ids(20)
    error = (moved(keys_at(model, ids, 0), bad, 200) - keys_at(model, ids, 200)).norm()
    assert error > 0.1 * keys_at(model, ids, 200).norm()
