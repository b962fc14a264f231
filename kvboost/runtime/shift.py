"""Residual shift: what recomputed tokens tell about their neighbours that are not recomputed.

While a recomputed token's K/V are written at a layer, the mean difference to what stood there is added, shrunk,
to the tokens of the same run that are kept. Keys are un-rotated first, so that position drops out of the
difference. It costs no extra pass: it happens when the cache is updated.

How much the mean is shrunk is taken from the sample, for each layer, run and head: a James-Stein estimate
(James and Stein, 1961), ``1 - (trace of the covariance / n) / |mean|^2``, not below 0 and at most 0.6. Mean KL to
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

The difference fades along a run: over 13 runs of at least 150 tokens its part along the run's mean is 2.0 at depth
0-8, 1.8 at 8-32, 1.5 at 32-64, 1.4 at 64-128, 1.1 at 128-256 and .75 beyond, close to ``2.05 / sqrt(1 + depth / 64)``.
Fitting the mean to that profile and applying it by it did not help all the same: .0127 / .0069 / .0032 against
.0116 / .0075 / .0030 over 4 prompts, with the tokens chosen as ``repair/query.py`` does now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvboost.runtime.rope import Rope, rotated
from kvboost.types import Span

# The tokens that are recomputed are those that matter most, no fair sample of the rest.
MAX_WEIGHT = 0.6


@dataclass(frozen=True, slots=True)
class RunShift:
    """One run: its ``span``, and which rows of the pass (``rows``) recompute which of its positions."""

    span: Span
    rows: Tensor
    positions: Tensor


@dataclass(frozen=True, slots=True)
class LayerShift:
    """The shifts of one layer.

    Attributes
    ----------
    rope
        The layer's rope, or None if it does not rotate.
    cos, sin
        ``[N, rotary_dim / 2]`` of all prompt positions (empty without rope).
    """

    runs: Sequence[RunShift]
    rope: Rope | None
    cos: Tensor
    sin: Tensor

    def apply(self, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor) -> None:
        """Shift ``keys`` and ``values`` in place, over the whole span of each run.

        Parameters
        ----------
        keys, values
            ``[kv_heads, capacity, dim]``, as they stand before the pass writes to them.
        new_keys, new_values
            ``[kv_heads, Q, dim]``, what the pass is about to write.
        """
        for run in self.runs:
            at = slice(run.span.start, run.span.end)
            key_gap = new_keys[:, run.rows].float() - keys[:, run.positions].float()
            if self.rope is not None:
                key_gap = rotated(key_gap, self.cos[run.positions], -self.sin[run.positions], self.rope)
            mean_key = shrunk_mean(key_gap)
            if self.rope is not None:
                mean_key = rotated(mean_key.expand(-1, len(run.span), -1), self.cos[at], self.sin[at], self.rope)
            _add(keys[:, at], mean_key)
            value_gap = new_values[:, run.rows].float() - values[:, run.positions].float()
            _add(values[:, at], shrunk_mean(value_gap))


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


def plan_shift(runs: Sequence[Span], positions: Tensor) -> list[RunShift]:
    """Return the shift of each run that ``positions`` (``[Q]``, of the pass) touch."""
    shifts = []
    for span in runs:
        rows = ((positions >= span.start) & (positions < span.end)).nonzero().flatten()
        if 0 < len(rows) < len(span):
            shifts.append(RunShift(span, rows, positions[rows]))
    return shifts


def layer_shifts(
    runs: Sequence[Span], positions: Tensor, ropes: Sequence[Rope | None], num_tokens: int
) -> list[LayerShift | None] | None:
    """Return one shift per layer, or None if no run is touched."""
    shifts = plan_shift(runs, positions)
    if not shifts:
        return None
    everywhere = torch.arange(num_tokens, device=positions.device)
    empty = torch.empty(0, device=positions.device)
    angles = {rope: rope.angles(everywhere) for rope in set(ropes) if rope is not None}
    return [LayerShift(shifts, rope, *(angles[rope] if rope is not None else (empty, empty))) for rope in ropes]


def _add(target: Tensor, amount: Tensor) -> None:
    if target.dtype == torch.float32:
        target += amount
    else:
        target.copy_(target.float() + amount)
