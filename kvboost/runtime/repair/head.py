"""Head repair: recompute the first tokens of each run.

A run that was computed at the start of its own context, or behind other text, has attention sinks at its head
that do not belong where the run stands now. Recomputing the first tokens of each run lets them see that they
are not the first any more. The idea is that of LegoLink in EPIC (Hu et al., 2024, arXiv:2410.15332), there for
whole documents; at chunks of 16-64 tokens the heads would be everything, so it works on runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvboost.runtime.plan.plan import Run
from kvboost.runtime.repair.base import RepairContext, Selection


class HeadRepair:
    """Recompute the first ``head_tokens`` tokens of each run; fewer where the budget does not reach."""

    def select(self, context: RepairContext) -> Selection:
        """Return the heads of all runs, equally long.

        A run that stands at the start of the prompt and stood at the start of its own sequence is left out: it
        lacks no history. No pass is needed to choose.
        """
        runs = [run for run in context.plan.runs if run.repairable and (run.span.start > 0 or run.shift != 0)]
        if not runs:
            return context.nothing()
        length = _affordable(runs, context.head_tokens, context.budget_tokens)
        if length == 0:
            return context.nothing(
                f"the repair budget of {context.budget_tokens:.0f} tokens is below one for each of {len(runs)} runs"
            )
        device = context.token_ids.device
        heads = [torch.arange(r.span.start, min(r.span.start + length, r.span.end), device=device) for r in runs]
        positions = torch.cat(heads)
        return Selection(positions[torch.isin(positions, context.candidates)])


def _affordable(runs: Sequence[Run], at_most: int, budget_tokens: float) -> int:
    """Return the greatest head length, ``at_most`` if possible, whose heads together fit the budget."""
    length = min(at_most, max(len(run.span) for run in runs))
    while length > 0 and sum(min(length, len(run.span)) for run in runs) > budget_tokens:
        length -= 1
    return length
