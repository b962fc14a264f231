"""Head and query repair together: a part of the budget for the heads of runs, the rest for the question.

Heads are cheap to choose and hold what every later token attends to (EPIC's idea, see ``head.py``); the
question's attention finds the rest (ProphetKV's idea, see ``query.py``).
"""

from __future__ import annotations

from kvboost.runtime.repair.base import RepairContext, Selection
from kvboost.runtime.repair.head import HeadRepair
from kvboost.runtime.repair.query import QueryRepair

HEAD_SHARE = 0.25


class HeadQueryRepair:
    """Recompute the heads of runs with a quarter of the budget, then what the question attends to."""

    def select(self, context: RepairContext) -> Selection:
        """Return both selections as one; what the heads leave of their part goes to the question."""
        heads = HeadRepair().select(context.limited(HEAD_SHARE))
        return heads.joined(QueryRepair().select(context.after(heads)))
