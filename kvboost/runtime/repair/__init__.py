"""Repair: which reused tokens are recomputed all the same. One file per strategy, chosen by name."""

from __future__ import annotations

from kvboost.runtime.repair.base import Repair, RepairContext, Selection
from kvboost.runtime.repair.none import NoRepair
from kvboost.runtime.repair.query import QueryRepair

STRATEGIES: dict[str, type[Repair]] = {"none": NoRepair, "query": QueryRepair}

__all__ = ["STRATEGIES", "NoRepair", "QueryRepair", "Repair", "RepairContext", "Selection"]
