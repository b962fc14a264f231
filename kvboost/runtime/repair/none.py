"""No repair: re-rotation only."""

from __future__ import annotations

import torch

from kvboost.runtime.repair.base import RepairContext, Selection


class NoRepair:
    """Recompute nothing."""

    def select(self, context: RepairContext) -> Selection:
        """Return an empty selection."""
        return Selection(torch.empty(0, dtype=torch.long, device=context.token_ids.device))
