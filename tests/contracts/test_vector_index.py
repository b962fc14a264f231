"""The vector index keeps the contract of the plainest one, and agrees with it on whatever is done to both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.index.vectors import VectorIndex
from tests.contracts.vector_index import VectorIndexContract, random_units
from tests.contracts.vector_index_reference import ReferenceIndex


class TestReferenceIndex(VectorIndexContract):
    make_index = ReferenceIndex


class TestVectorIndex(VectorIndexContract):
    make_index = VectorIndex


_step = st.tuples(st.sampled_from(["add", "remove", "search"]), st.sets(st.integers(0, 30), min_size=1, max_size=20))


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(_step, min_size=1, max_size=12),
    seed=st.integers(0, 1000),
    threshold=st.sampled_from([0.0, 0.3, 0.65]),
    k=st.integers(1, 8),
)
def test_agrees_with_the_reference(steps: list[tuple[str, set[int]]], seed: int, threshold: float, k: int) -> None:
    ours, reference = VectorIndex(8), ReferenceIndex(8)
    rows = random_units(seed, 31, 8)
    for step, ids in steps:
        chosen = sorted(ids)
        if step == "add":
            ours.add(chosen, rows[chosen])
            reference.add(chosen, rows[chosen])
        elif step == "remove":
            assert ours.remove(chosen) == reference.remove(chosen)
        assert len(ours) == len(reference)
        queries = rows[chosen] + 0.1 * random_units(seed + 1, len(chosen), 8)
        _assert_same(ours.search(queries, k, threshold), reference.search(queries, k, threshold))


@pytest.mark.parametrize("queries", [1, 4, 64, 400])
@pytest.mark.parametrize("threshold", [-1.0, 0.05, 0.6])
def test_all_ways_to_multiply_lead_to_the_same_answer(queries: int, threshold: float) -> None:
    # 400 x 384 is above FAISS's switch to BLAS, 64 x 384 below; at -1 all pairs pass the threshold.
    rows = random_units(9, 600, 384)
    ours, reference = VectorIndex(384), ReferenceIndex(384)
    wanted = rows[:queries] + random_units(10, queries, 384)
    for index in (ours, reference):
        index.add(range(600), rows)
    _assert_same(ours.search(wanted, 3, threshold), reference.search(wanted, 3, threshold))


def _assert_same(mine: Sequence[Sequence[tuple[int, float]]], theirs: Sequence[Sequence[tuple[int, float]]]) -> None:
    assert [[i for i, _ in hits] for hits in mine] == [[i for i, _ in hits] for hits in theirs]
    for own, wanted in zip(mine, theirs, strict=True):
        np.testing.assert_allclose([c for _, c in own], [c for _, c in wanted], atol=1e-6)
