"""Residual shift: what recomputed tokens tell about their neighbours that are not recomputed.

While a recomputed token's K/V are written at a layer, the mean difference to what stood there is added, shrunk,
to the tokens of the same run that are kept. Keys are un-rotated first, so that position drops out of the
difference. It costs no extra pass: it happens when the cache is updated.

How much the mean is shrunk is taken from the sample, for each layer, run and head: a James-Stein estimate
(James and Stein, 1961), ``1 - (trace of the covariance / n) / |mean|^2``, not below 0 and at most 0.8. Mean KL to
full prefill on the demo model, 3 prompts of about 2,100 tokens with six documents in a new order, query repair,
rotate only .0154:

=====================================  =====  =====  =====
recompute ratio                          .05    .15    .30
=====================================  =====  =====  =====
no shift                               .0139  .0110  .0064
``n / (n + 15)``, at most .6           .0132  .0098  .0048
James-Stein, at most .6                .0132  .0086  .0045
James-Stein by head, at most .6        .0131  .0084  .0045
James-Stein, at most .8                .0135  .0097  .0046
James-Stein, thrice the variance       .0133  .0099  .0051
kriging: nearer tokens count more      .0128  .0091  .0049
=====================================  =====  =====  =====

The difference fades along a run: over 13 runs of at least 150 tokens its part along the run's mean was 2.0 at depth
0-8, 1.8 at 8-32, 1.5 at 32-64, 1.4 at 64-128, 1.1 at 128-256 and .75 beyond; and the tokens that are recomputed stand
near the starts of runs. So a token gets the mean times ``1 / sqrt(1 + depth / 16)`` relative to the sample's own
average of that, and never more than the mean. Mean KL over rotate-only's, 4 prompts of about 1,330 tokens (four
documents) and 4 of about 2,020 (six), other prompts than above:

=====================================  ====  ====  ====  ====  ====  ====
recompute ratio                         .05   .15   .30   .05   .15   .30
=====================================  ====  ====  ====  ====  ====  ====
no shift                                .76   .46   .22
same for all depths, at most .6         .45   .33   .16   .40   .18   .09
same for all depths, at most .4         .40   .24   .13
fading over 64 tokens, at most .6       .36   .21   .13   .36   .18   .09
fading over 32 tokens, at most .6       .37   .21   .13   .36   .18   .10
fading over 16 tokens, at most .6       .39   .21   .13
**fading over 16 tokens, at most .8**   .35   .20   .13   .34   .17   .09
fading over 64 tokens, at most .8       .37   .25   .15
fading over 64 tokens, at most 1        .40   .29   .18
=====================================  ====  ====  ====  ====  ====  ====

Giving tokens before the sample more than the mean (by the profile, unbounded) was no better.

A long prompt is computed in several passes. Then each shifts the stretch of a run between its own first token and the
next pass's, by its own sample: no token of a pass sees what comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvboost.runtime.model.rope import Rope, pairs, rotated
from kvboost.types import Span

# The tokens that are recomputed are those that matter most, no fair sample of the rest.
MAX_WEIGHT = 0.8
FADE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class RunShift:
    """One run: its ``span``, and which rows of the pass (``rows``) recompute which of its positions.

    ``fade`` (``[len(span), 1]`` fp32) is the share of the mean difference that each of its tokens gets.
    """

    span: Span
    rows: slice
    positions: Tensor
    fade: Tensor


@dataclass(frozen=True, slots=True)
class LayerShift:
    """The shifts of one layer.

    Attributes
    ----------
    turns
        Of each run under the layer's rope; None if the layer does not rotate.
    """

    runs: Sequence[RunShift]
    rope: Rope | None
    turns: Sequence[_Turn] | None

    def apply(self, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor) -> None:
        """Shift ``keys`` and ``values`` in place, over the whole span of each run.

        Parameters
        ----------
        keys, values
            ``[kv_heads, capacity, dim]``, as they stand before the pass writes to them.
        new_keys, new_values
            ``[kv_heads, Q, dim]``, what the pass is about to write.
        """
        for i, run in enumerate(self.runs):
            at = slice(run.span.start, run.span.end)
            key_gap = new_keys[:, run.rows].float() - keys[:, run.positions].float()
            value_gap = new_values[:, run.rows].float() - values[:, run.positions].float()
            turn = self.turns[i] if self.turns is not None else None
            if turn is not None and self.rope is not None:
                key_gap = rotated(key_gap, turn.sample_cos, turn.sample_back, self.rope)
            key_mean, value_mean = _means(key_gap, value_gap)
            if turn is not None and self.rope is not None:
                _add_turned(keys[:, at], key_mean, run.fade, turn, self.rope)
            else:
                _add(keys[:, at], key_mean, run.fade)
            _add(values[:, at], value_mean, run.fade)


@dataclass(frozen=True, slots=True)
class _Turn:
    """Angles of one run under one rope: ``[len(span), rotary_dim / 2]`` times the fade, and the sample's, backwards."""

    cos: Tensor
    sin: Tensor
    sample_cos: Tensor
    sample_back: Tensor


def _means(key_gap: Tensor, value_gap: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shrunk means of both, found together where heads of keys and values are alike: half the calls."""
    if key_gap.shape[2] != value_gap.shape[2]:
        return shrunk_mean(key_gap), shrunk_mean(value_gap)
    key_mean, value_mean = shrunk_mean(torch.cat([key_gap, value_gap])).chunk(2)
    return key_mean, value_mean


def shrunk_mean(gaps: Tensor) -> Tensor:
    """Return the mean of ``gaps`` (``[heads, n, dim]``) over the tokens, shrunk head by head: ``[heads, 1, dim]``.

    A single token tells nothing of the spread, so its gap is taken for chance.
    """
    count = gaps.shape[1]
    mean = gaps.mean(dim=1, keepdim=True)
    if count == 1:
        return torch.zeros_like(mean)
    error = (gaps - mean).square().sum(dim=(1, 2), keepdim=True) / (count - 1) / count
    weight = 1.0 - error / mean.square().sum(dim=2, keepdim=True).clamp_min(torch.finfo(mean.dtype).tiny)
    return mean * weight.clamp(0.0, MAX_WEIGHT)


def plan_shift(runs: Sequence[Span], positions: Tensor, within: Span | None = None) -> list[RunShift]:
    """Return the shift of each run, or of its part ``within``, that ``positions`` (``[Q]``, ascending) touch twice."""
    shifts = []
    bounds = torch.tensor([(run.start, run.end) for run in runs], dtype=torch.long, device=positions.device)
    places = torch.searchsorted(positions, bounds.view(-1, 2)).tolist()
    for run, (first, last) in zip(runs, places, strict=True):
        if first == last:
            continue
        span = run if within is None else Span(max(run.start, within.start), min(run.end, within.end))
        if 1 < last - first < len(span):  # one token tells nothing of the spread
            sample = positions[first:last]
            depth = torch.arange(len(span), device=positions.device, dtype=torch.float32) + (span.start - run.start)
            profile = (1.0 + depth / FADE_TOKENS).rsqrt()
            fade = (profile / profile[sample - span.start].mean()).clamp_max(1.0)
            shifts.append(RunShift(span, slice(first, last), sample, fade[:, None]))
    return shifts


def layer_shifts(
    runs: Sequence[Span], positions: Tensor, ropes: Sequence[Rope | None], within: Span | None = None
) -> list[LayerShift | None] | None:
    """Return one shift per layer, or None if no run is touched; parameters as of :func:`plan_shift`."""
    shifts = plan_shift(runs, positions, within)
    if not shifts:
        return None
    turns = {rope: [_turn(run, rope) for run in shifts] for rope in set(ropes) if rope is not None}
    return [LayerShift(shifts, rope, turns.get(rope) if rope is not None else None) for rope in ropes]


def _turn(run: RunShift, rope: Rope) -> _Turn:
    cos, sin = rope.angles(torch.arange(run.span.start, run.span.end, device=run.positions.device))
    sample = run.positions - run.span.start
    return _Turn(cos * run.fade, sin * run.fade, cos[sample], -sin[sample])


def _add(target: Tensor, amount: Tensor, fade: Tensor) -> None:
    """Add ``amount`` (``[heads, 1, dim]``) times ``fade`` to ``target`` (``[heads, T, dim]``) in fp32, cast once."""
    if target.dtype == torch.float32:
        target.addcmul_(amount, fade)
    else:
        target.copy_(target.float().addcmul_(amount, fade))


def _add_turned(target: Tensor, amount: Tensor, fade: Tensor, turn: _Turn, rope: Rope) -> None:
    """Add ``amount`` as :func:`_add` does, rotated to each token's position."""
    sum_ = target if target.dtype == torch.float32 else target.float()
    first, second = pairs(sum_, rope)
    a, b = pairs(amount, rope)
    first.addcmul_(a, turn.cos).addcmul_(b, turn.sin, value=-1.0)
    second.addcmul_(b, turn.cos).addcmul_(a, turn.sin)
    if rope.rotary_dim < amount.shape[-1]:
        sum_[..., rope.rotary_dim :].addcmul_(amount[..., rope.rotary_dim :], fade)
    if sum_ is not target:
        target.copy_(sum_)
