"""What attention is weighted with, apart from the model."""

from __future__ import annotations

import torch

from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.runtime.repair.query import prior
from kvboost.types import Donor, Span, Tier


def reuse(start: int, end: int, at: int, chunk_id: int) -> ReuseSpan:
    tokens = tuple(range(start, end))
    donor = Donor(chunk_id, tokens, at, bytes([chunk_id]), bytes([chunk_id, 1]), exact=True)
    return ReuseSpan(Span(start, end), donor, 0, Tier.EXACT)


PLAN = Plan(1000, (reuse(100, 300, 0, 1), reuse(300, 700, 900, 2)))


def test_the_start_of_every_run_counts_most_and_depth_less():
    weights = prior(PLAN, torch.device("cpu"))
    for start, end in ((100, 300), (300, 700)):
        assert torch.all(weights[start : end - 1] > weights[start + 1 : end])
    assert weights[100] == weights[300]


def test_tokens_near_the_question_count_less():
    weights = prior(Plan(1000, ()), torch.device("cpu"))
    assert torch.all(weights[:744] == weights[0])
    assert torch.all(weights[745:-1] > weights[746:])
