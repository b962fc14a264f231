"""Query and deviation repair together: half the budget for the question, the rest for what deviates.

What the question does not attend to at first sight, the second hop of a two-hop question, is not found by
attention; K/V deviation (CacheBlend's idea, see ``deviation.py``) knows nothing of the question and finds some.
"""

from __future__ import annotations

from kvboost.runtime.repair.base import RepairContext, Selection
from kvboost.runtime.repair.deviation import DeviationRepair
from kvboost.runtime.repair.query import QueryRepair

QUERY_SHARE = 0.5


class QueryDeviationRepair:
    """Recompute what the question attends to with half of the budget, then what deviates most."""

    def select(self, context: RepairContext) -> Selection:
        """Return both selections as one; what the question leaves of its part goes to the deviation."""
        asked = QueryRepair().select(context.limited(QUERY_SHARE))
        return asked.joined(DeviationRepair().select(context.after(asked)))
