"""How likely a chosen token was, and which ones were likeliest in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities at one place of an answer.

    They are the log-softmax of the model's own logits, in float32: before temperature, penalties and the filters of
    sampling, so they say what the model thinks and not how it was asked to draw.

    Attributes
    ----------
    chosen
        Of the token that was chosen.
    top
        ``k`` tokens and their log-probabilities, likeliest first.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


OnLogprobs = Callable[[Logprobs], None]
"""Told the log-probabilities of each answer token, just before the token itself."""


def logprobs_of(logits: Tensor, token_id: int, k: int) -> Logprobs:
    """Return those of ``token_id`` and the ``k`` likeliest tokens by ``logits`` ``[1, vocab]``."""
    scores = logits[0].float().log_softmax(-1)
    values, ids = scores.topk(min(k, scores.shape[0]))
    return Logprobs(float(scores[token_id]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
