"""Which settings no other setting beats, and which one to recommend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Tell for each point ``(cost, loss)`` whether no other is at most as high in both and lower in one."""
    return [
        not any(
            other[0] <= point[0] and other[1] <= point[1] and (other[0] < point[0] or other[1] < point[1])
            for other in points
        )
        for point in points
    ]


def recommend(cells: Sequence[Mapping[str, Any]], max_kl: float) -> Mapping[str, Any] | None:
    """Return the cell with most reuse whose mean KL is at most ``max_kl``; None if there is none.

    Of equals, the one with less loss, then the stricter threshold.
    """
    kept = [cell for cell in cells if cell["kl_mean"] <= max_kl]
    return max(kept, key=lambda cell: (cell["reuse_share"], -cell["kl_mean"], cell["threshold"] or 0.0), default=None)
