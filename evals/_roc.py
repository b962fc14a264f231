"""How well a threshold on the cosine parts wanted pairs from unwanted ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_MAX_POINTS = 60


@dataclass(frozen=True, slots=True)
class Roc:
    """Receiver operating characteristic of ``cosine >= threshold``.

    Attributes
    ----------
    area
        Chance that a wanted pair has a higher cosine than an unwanted one; ties count half.
    points
        Threshold, share of unwanted and share of wanted pairs at or above it; thresholds fall.
    """

    area: float
    points: tuple[tuple[float, float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as lists."""
        names = ("threshold", "false_share", "true_share")
        return {"area": self.area, "points": [dict(zip(names, point, strict=True)) for point in self.points]}


def roc(wanted: Sequence[float], unwanted: Sequence[float]) -> Roc:
    """Return the curve of two sets of cosines, neither of them empty."""
    good, bad = np.sort(np.asarray(wanted)), np.sort(np.asarray(unwanted))
    below = np.searchsorted(bad, good, "left") + np.searchsorted(bad, good, "right")
    area = float(below.mean() / 2 / len(bad))
    thresholds = np.unique(np.concatenate([good, bad]))[::-1]
    if len(thresholds) > _MAX_POINTS:
        thresholds = thresholds[np.linspace(0, len(thresholds) - 1, _MAX_POINTS).round().astype(int)]
    points = tuple((float(t), share_at(bad, t), share_at(good, t)) for t in thresholds)
    return Roc(area, points)


def share_at(cosines: Sequence[float] | npt.NDArray[Any], threshold: float) -> float:
    """Return the share of cosines that reach the threshold."""
    return float((np.asarray(cosines) >= threshold).mean())
