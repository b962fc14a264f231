"""Repair: which reused tokens are recomputed all the same. One file per strategy, chosen by name."""

from __future__ import annotations

from kvboost.runtime.repair.base import Repair, RepairContext, Selection
from kvboost.runtime.repair.deviation import DeviationRepair
from kvboost.runtime.repair.head import HeadRepair
from kvboost.runtime.repair.head_query import HeadQueryRepair
from kvboost.runtime.repair.none import NoRepair
from kvboost.runtime.repair.query import QueryRepair
from kvboost.runtime.repair.query_deviation import QueryDeviationRepair
from kvboost.runtime.repair.random import RandomRepair

STRATEGIES: dict[str, type[Repair]] = {
    "none": NoRepair,
    "head": HeadRepair,
    "deviation": DeviationRepair,
    "query": QueryRepair,
    "head+query": HeadQueryRepair,
    "query+deviation": QueryDeviationRepair,
    "random": RandomRepair,
}

__all__ = [
    "STRATEGIES",
    "DeviationRepair",
    "HeadQueryRepair",
    "HeadRepair",
    "NoRepair",
    "QueryDeviationRepair",
    "QueryRepair",
    "RandomRepair",
    "Repair",
    "RepairContext",
    "Selection",
]
