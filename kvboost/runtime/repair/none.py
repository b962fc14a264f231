"""No repair: re-rotation only."""

from __future__ import annotations

from kvboost.runtime.repair.base import RepairContext, Selection


class NoRepair:
    """Recompute nothing."""

    def select(self, context: RepairContext) -> Selection:
        """Return an empty selection."""
        return context.nothing()
