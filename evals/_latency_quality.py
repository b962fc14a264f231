"""What the latency of shifted prompts costs in quality, beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evals._latency_cells import Case, Group
from evals._served import Served
from kvboost.runtime.tools.score import FullPrefill


def add_quality(cells: Sequence[dict[str, Any]], group: Group, served: Served, answer_tokens: int) -> None:
    """Give the cells of the shifted and edited tiers ``kl_mean`` and ``top1_agreement`` against full prefill.

    One prompt each: a figure to stand beside the time, not an estimate; that is what :mod:`evals.quality` is for.
    """
    session = served.session()
    known: dict[tuple[int, ...], FullPrefill] = {}
    for case in group.cases:
        mine = [cell for cell in cells if _is_of(cell, case)]
        if case.tier not in ("shifted", "edited") or not mine:
            continue
        if case.prompt not in known:
            known[case.prompt] = session.full(case.prompt, answer_tokens)
        measured = session.measure(case.prompt, known[case.prompt], case.policy)
        for cell in mine:
            cell["kl_mean"] = measured.loss.kl_mean
            cell["top1_agreement"] = measured.loss.top1_agreement


def _is_of(cell: dict[str, Any], case: Case) -> bool:
    return bool(cell["tier"] == case.tier and cell["new_share"] == case.new_share)
