"""What things cost on this machine with this model, in seconds.

A forward pass is taken to cost ``pass_s + token_s * n + pair_s * pairs``, with ``pairs`` the (query, key) pairs of its
``n`` tokens: weights are read once, multiplied once per token, and attention looks from each token at all before it.
The three are fitted to timed passes, never negative, so that a longer pass or a longer context never looks cheaper; and
a token always costs something, however the clock ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# A residual is judged against the median one, but timings differ by this share for no reason at all.
_USUAL_SPREAD = 0.1
_ROUNDS = 4

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimedPass:
    """One forward pass over ``new_tokens`` that saw ``context_tokens`` before them, and its seconds."""

    new_tokens: int
    context_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of the parts of a request; every coefficient is at least 0.

    Attributes
    ----------
    pass_s
        Of any forward pass, however short.
    token_s
        For each token that a pass computes.
    pair_s
        For each pair of a computed token and a token that it sees.
    copy_byte_s
        For each byte of K/V that is copied into place as it is.
    rotate_byte_s
        For each byte of keys that is re-rotated into place.
    """

    pass_s: float
    token_s: float
    pair_s: float
    copy_byte_s: float
    rotate_byte_s: float

    def forward_s(self, new_tokens: float, context_tokens: float = 0) -> float:
        """Return the seconds of one pass over ``new_tokens`` that see each other and ``context_tokens`` before them."""
        return self.pass_s + self.token_s * new_tokens + self.pair_s * _pairs(new_tokens, context_tokens)

    def place_s(self, copied_bytes: float, rotated_bytes: float) -> float:
        """Return the seconds of putting K/V into place, once they are in memory."""
        return self.copy_byte_s * copied_bytes + self.rotate_byte_s * rotated_bytes


def fit(passes: Sequence[TimedPass], copy_byte_s: float, rotate_byte_s: float) -> CostModel:
    """Fit the pass costs to timed passes, at least one.

    Least squares of the relative error, without negative coefficients; passes that fit badly (a busy machine, a first
    call) count less (Huber weights, four rounds).
    """
    rows = np.array([[1.0, p.new_tokens, _pairs(p.new_tokens, p.context_tokens)] for p in passes])
    seconds = np.array([p.seconds for p in passes])
    weights = np.ones(len(passes))
    for _ in range(_ROUNDS):
        found = _non_negative(rows / seconds[:, None], weights)
        residual = np.abs(rows @ found / seconds - 1.0)
        limit = max(1.5 * float(np.median(residual)), _USUAL_SPREAD)
        weights = np.minimum(1.0, limit / np.maximum(residual, 1e-12))
    return CostModel(float(found[0]), float(found[1]), float(found[2]), copy_byte_s, rotate_byte_s)


def _pairs(new_tokens: float, context_tokens: float) -> float:
    return new_tokens * (context_tokens + new_tokens / 2)


def _non_negative(rows: _Array, weights: _Array) -> _Array:
    """Return ``x`` (three values, none negative, the second positive) that brings ``rows @ x`` closest to 1, weighted.

    With so few unknowns the best set of those that are not 0 is found by trying all sets.
    """
    root = np.sqrt(weights)
    best, best_error = np.zeros(rows.shape[1]), np.inf
    for chosen in ([1], [0, 1], [1, 2], [0, 1, 2]):
        scale = np.linalg.norm(rows[:, chosen], axis=0)
        x = np.linalg.lstsq(rows[:, chosen] / scale * root[:, None], root, rcond=None)[0] / scale
        error = float((weights * (rows[:, chosen] @ x - 1.0) ** 2).sum())
        if (x >= 0.0).all() and error < best_error - 1e-12:
            best, best_error = np.zeros(rows.shape[1]), error
            best[chosen] = x
    return best
