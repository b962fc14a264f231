"""FAISS and NumPy keep the same contract, and agree on whatever is done to them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.index.vectors import BruteForceIndex, FaissIndex
from tests.contracts.vector_index import VectorIndexContract, random_units


class TestFaissIndex(VectorIndexContract):
    make_index = FaissIndex


class TestBruteForceIndex(VectorIndexContract):
    make_index = BruteForceIndex


_step = st.tuples(st.sampled_from(["add", "remove", "search"]), st.sets(st.integers(0, 30), min_size=1, max_size=20))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(_step, min_size=1, max_size=20),
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    st.integers(1, 8),
)
def test_faiss_agrees_with_brute_force(steps: list[tuple[str, set[int]]], seed: int, threshold: float, k: int) -> None:
    ours, reference = FaissIndex(8), BruteForceIndex(8)
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
        for mine, theirs in zip(
            ours.search(queries, k, threshold), reference.search(queries, k, threshold), strict=True
        ):
            assert [i for i, _ in mine] == [i for i, _ in theirs]
            np.testing.assert_allclose([c for _, c in mine], [c for _, c in theirs], atol=1e-6)


def test_many_queries_take_the_blas_path_to_the_same_answer() -> None:
    rows = random_units(9, 600, 384)
    ours, reference = FaissIndex(384), BruteForceIndex(384)
    for index in (ours, reference):
        index.add(range(600), rows)
    # 400 x 384 is above FAISS's switch to BLAS, 10 x 384 below.
    for n in (10, 400):
        mine, theirs = ours.search(rows[:n], 3, 0.0), reference.search(rows[:n], 3, 0.0)
        assert [[i for i, _ in hits] for hits in mine] == [[i for i, _ in hits] for hits in theirs]
