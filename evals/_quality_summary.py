"""Whether the default strategy keeps its bounds on the first task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Greatest mean KL as a share of rotate-only's, by recompute ratio, and least top-1 agreement at the middle one.
KL_BOUNDS: Mapping[str, float] = {"0.05": 0.45, "0.15": 0.25, "0.3": 0.12}
TOP1_BOUND = 0.95
TOP1_AT = "0.15"


def summarise(rows: Sequence[Mapping[str, Any]], task: str, strategy: str) -> dict[str, Any]:
    """Return the strategy's mean KL over rotate-only's by budget, its top-1 agreement, and whether all bounds hold."""
    own = [each for each in rows if each["task"] == task]
    by_ratio = {f"{each['recompute_ratio']:g}": each for each in own if each["repair"] == strategy}
    measured = {ratio: by_ratio[ratio] for ratio in KL_BOUNDS if ratio in by_ratio}
    # Without any loss to repair there is nothing to compare.
    ratios = {r: each["kl_over_rotate_only"] for r, each in measured.items() if each["kl_over_rotate_only"] is not None}
    top1 = {ratio: each["top1_agreement"] for ratio, each in measured.items()}
    kept = all(ratios.get(ratio, 0.0) <= bound for ratio, bound in KL_BOUNDS.items())
    return {
        "task": task,
        "strategy": strategy,
        "kl_over_rotate_only": ratios,
        "top1_agreement": top1,
        "bounds": {**KL_BOUNDS, "top1": TOP1_BOUND},
        "holds": bool(ratios) and kept and top1.get(TOP1_AT, 0.0) >= TOP1_BOUND,
    }
