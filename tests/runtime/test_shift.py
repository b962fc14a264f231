"""The residual shift: what it estimates, how far it trusts few tokens, and that position plays no part in it."""

import pytest
import torch

from kvboost.runtime.kv.residual_shift import FADE_TOKENS, MAX_WEIGHT, LayerShift, layer_shifts, plan_shift, shrunk_mean
from kvboost.runtime.model.rope import Pairing, Rope, rotated
from kvboost.types import Span

ROPE = Rope((1.0, 0.1, 0.01), Pairing.HALF)
HEADS, DIM, LENGTH = 2, 6, 40


def _noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_equal_gaps_are_trusted_up_to_the_cap():
    gap = _noise(HEADS, 1, DIM)
    assert torch.allclose(shrunk_mean(gap.expand(-1, 5, -1)), MAX_WEIGHT * gap)


def test_one_gap_and_no_gap_move_nothing():
    assert not shrunk_mean(_noise(HEADS, 1, DIM)).any()
    assert not shrunk_mean(torch.zeros(HEADS, 7, DIM)).any()


def test_the_weight_is_the_positive_part_of_james_stein():
    gaps = _noise(HEADS, 9, DIM) + 1.0
    got = shrunk_mean(gaps)
    for head in range(HEADS):
        mean = gaps[head].mean(0)
        error = torch.cov(gaps[head].T).trace() / 9
        weight = (1 - error / mean.dot(mean)).clamp(0.0, MAX_WEIGHT)
        assert weight > 0.0
        assert torch.allclose(got[head, 0], weight * mean, atol=1e-6)


def test_chance_moves_far_less_than_its_mean():
    gaps = _noise(200, 12, 64)
    assert shrunk_mean(gaps).norm() < 0.3 * gaps.mean(dim=1).norm()


@pytest.mark.parametrize("rope", [ROPE, None])
def test_a_constant_error_of_a_run_is_taken_back_by_cap_and_fade(rope):
    """Keys that are off by one vector before rotation, wherever they stand."""
    everywhere = torch.arange(LENGTH)
    cos, sin = ROPE.angles(everywhere)
    bare, off = _noise(HEADS, LENGTH, DIM), _noise(HEADS, 1, DIM, seed=1)

    def turned(keys):
        return rotated(keys, cos, sin, ROPE) if rope is not None else keys.clone()

    true_keys, stale_keys = turned(bare), turned(bare - off)
    true_values, stale_values = bare + 1.0, bare + 1.0 - off
    positions = torch.tensor([12, 15, 21, 35])  # the last one belongs to no run
    run = Span(10, 30)
    [shift] = layer_shifts([run], positions, [rope])
    assert isinstance(shift, LayerShift)
    keys, values = stale_keys.clone(), stale_values.clone()
    shift.apply(keys, values, true_keys[:, positions], true_values[:, positions])

    inside = slice(run.start, run.end)
    [planned] = plan_shift([run], positions)
    left = 1.0 - MAX_WEIGHT * planned.fade
    assert torch.allclose(keys[:, inside] - true_keys[:, inside], left * (stale_keys - true_keys)[:, inside], atol=1e-5)
    assert torch.allclose(values[:, inside] - true_values[:, inside], -left * off, atol=1e-5)
    for moved, stale in ((keys, stale_keys), (values, stale_values)):
        assert torch.equal(moved[:, :10], stale[:, :10])
        assert torch.equal(moved[:, 30:], stale[:, 30:])


def test_only_runs_with_kept_and_recomputed_tokens_are_shifted():
    runs = [Span(0, 10), Span(10, 12), Span(20, 30)]
    shifts = plan_shift(runs, torch.tensor([3, 4, 10, 11, 15]))
    assert [s.span for s in shifts] == [Span(0, 10)]
    assert shifts[0].rows == slice(0, 2)
    assert shifts[0].positions.tolist() == [3, 4]
    assert layer_shifts(runs, torch.tensor([15, 16]), [ROPE]) is None


def test_tokens_deeper_than_the_sample_get_less_and_none_gets_more_than_the_mean():
    [shift] = plan_shift([Span(5, 305)], torch.tensor([8, 9, 30]))
    fade = shift.fade.flatten()
    assert fade.max() == 1.0 == fade[0]
    assert (fade.diff() <= 0.0).all()
    profile = (1.0 + torch.arange(300.0) / FADE_TOKENS).rsqrt()
    assert torch.allclose(fade[200], profile[200] / profile[[3, 4, 25]].mean())


@pytest.mark.parametrize("rope", [ROPE, Rope((1.0, 0.1), Pairing.INTERLEAVED)])
def test_half_precision_is_added_in_fp32_and_cast_once(rope):
    positions, run = torch.tensor([2, 5, 6]), Span(0, 12)
    [shift] = layer_shifts([run], positions, [rope])
    keys, new = _noise(HEADS, 12, DIM).bfloat16(), _noise(HEADS, 3, DIM, seed=1).bfloat16()
    half, full = keys.clone(), keys.float()
    shift.apply(half, keys.clone(), new, new)
    shift.apply(full, keys.float(), new.float(), new.float())
    assert torch.equal(half, full.bfloat16())
