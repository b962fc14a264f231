"""Bounds on the share of violations from a sample of requests."""

from __future__ import annotations

import math
from collections.abc import Callable

_BISECTIONS = 50


def rate_bounds(violations: int, audits: int, confidence: float) -> tuple[float, float]:
    """Return a lower and an upper bound of a Bernoulli rate that may be looked at after every observation.

    A Clopper-Pearson bound holds for a number of observations that is fixed beforehand; looked at after each
    one it is soon wrong by chance. These are the rates that the beta-binomial mixture martingale (Robbins 1970,
    prior Beta(1/2, 1/2)) has not ruled out by Ville's inequality: for independent observations of a constant
    rate, the chance that the bounds *ever* miss it is at most ``1 - confidence``. The price is that they are
    wider: no violation in 116 observations, instead of 59, says "below 5 %" with confidence .95.

    Parameters
    ----------
    violations, audits
        Observed so far, ``0 <= violations <= audits``.
    confidence
        In ``(0, 1)``.
    """
    if audits == 0:
        return 0.0, 1.0
    share = violations / audits

    def ruled_out(rate: float) -> bool:
        return _rules_out(rate, violations, audits, confidence)

    lower = 0.0 if violations == 0 else _edge(share, 0.0, ruled_out)
    upper = 1.0 if violations == audits else _edge(share, 1.0, ruled_out)
    return lower, upper


def surely_above(rate: float, violations: int, audits: int, confidence: float) -> bool:
    """Whether the lower one of :func:`rate_bounds` is above ``rate``."""
    return violations > rate * audits and _rules_out(rate, violations, audits, confidence)


def surely_below(rate: float, violations: int, audits: int, confidence: float) -> bool:
    """Whether the upper one of :func:`rate_bounds` is below ``rate``."""
    return violations < rate * audits and _rules_out(rate, violations, audits, confidence)


def _rules_out(rate: float, violations: int, audits: int, confidence: float) -> bool:
    """Whether the observations are too unlikely at ``rate``, in ``(0, 1)``, against the mixture."""
    likelihood = violations * math.log(rate) + (audits - violations) * math.log1p(-rate)
    return likelihood < _log_mixture(violations, audits) + math.log(1.0 - confidence)


def _edge(inside: float, outside: float, ruled_out: Callable[[float], bool]) -> float:
    """Return where the rates from ``inside`` to ``outside`` begin to be ruled out; they stay so further out."""
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        if ruled_out(middle):
            outside = middle
        else:
            inside = middle
    return outside


def _log_mixture(violations: int, audits: int) -> float:
    """Return the logarithm of B(k + 1/2, n - k + 1/2) / B(1/2, 1/2)."""
    missed = audits - violations
    return math.lgamma(violations + 0.5) + math.lgamma(missed + 0.5) - math.lgamma(audits + 1.0) - math.log(math.pi)
