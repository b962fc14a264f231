"""The demo's figures under the names that scripts read."""

from __future__ import annotations

from collections.abc import Sequence

from kvboost.client.runtime_types import RuntimeInfo

from .origin import commit, machine, versions
from .outcome import Outcome
from .sustained import Sustained


def figures(outcomes: Sequence[Outcome], result: Sustained, info: RuntimeInfo, seed: int) -> dict[str, object]:
    """Return everything that ``--json`` writes."""
    return {
        "requests": [outcome.figures() for outcome in outcomes],
        "sustained": {
            "requests": result.requests,
            "documents": result.documents,
            "budget_bytes": result.budget_bytes,
            "stored_bytes_max": result.stored_bytes_max,
            "warm_from": result.warm_from,
            "window": result.window,
            "reuse_share_first_20_warm": result.first_share,
            "reuse_share_last_20": result.last_share,
            "ratio": result.ratio,
        },
        "model": info.model,
        "seed": seed,
        "machine": machine(),
        "commit": commit(),
        "versions": versions(),
    }
