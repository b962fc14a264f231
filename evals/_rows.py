"""From single measurements to the rows of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from evals._bench import Measurement


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt under one policy.

    Attributes
    ----------
    full_ttft_s
        Full prefill of the same prompt, measured in between.
    scores
        Of the answer against its references; empty without any.
    """

    measured: Measurement
    full_ttft_s: float
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def ttft_ratio(self) -> float:
        """Time to first token as a share of full prefill's."""
        return self.measured.report.ttft_s / self.full_ttft_s


def row(samples: Sequence[Sample], rotate_only: Sequence[Sample] = (), **names: object) -> dict[str, Any]:
    """Return one row: figures over all answer positions, or medians over prompts.

    ``rotate_only`` are the same prompts, in the same order, without repair; the loss is set against theirs too.
    """
    losses = [s.measured.loss for s in samples]
    positions = sum(each.positions for each in losses)
    left_at = [s.measured.first_divergence for s in samples]
    # An answer that never leaves full prefill's counts with its whole length.
    lengths = [each.positions if at is None else at for each, at in zip(losses, left_at, strict=True)]
    return {
        **names,
        "recompute_ratio_charged": mean(s.measured.report.recompute_ratio for s in samples),
        "kl_mean": _kl(samples),
        "kl_over_rotate_only": _kl(samples) / _kl(rotate_only) if rotate_only and _kl(rotate_only) > 0.0 else None,
        "kl_first": mean(each.kl_first for each in losses),
        "top1_agreement": sum(each.top1_agreement * each.positions for each in losses) / positions,
        "first_divergence": float(median(lengths)),
        "same_answer_share": mean(float(at is None) for at in left_at),
        "reuse_share": mean(s.measured.reuse_share for s in samples),
        "ttft_ratio": median(s.ttft_ratio for s in samples),
        **mean_scores([s.scores for s in samples]),
        "n": len(samples),
        "declined": sorted({reason for s in samples for reason in s.measured.report.declined}),
        "positions": positions,
        "kl_items": [each.kl_mean for each in losses],
    }


def _kl(samples: Sequence[Sample]) -> float:
    losses = [s.measured.loss for s in samples]
    return sum(each.kl_mean * each.positions for each in losses) / sum(each.positions for each in losses)


def mean_scores(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every score over the prompts that have it."""
    names = dict.fromkeys(name for each in scores for name in each)
    return {name: mean(each[name] for each in scores if name in each) for name in names}
