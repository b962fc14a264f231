"""What a vector index must do, the reference too. A subclass provides ``make_index``, called with the dimension."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import pytest

from kvboost.errors import InputError, TensorError
from kvboost.index.vectors_rows import Hits
from kvboost.protocols import Vectors


class AnyIndex(Protocol):
    """What the product's index and the reference have in common."""

    def __len__(self) -> int: ...

    def add(self, ids: Sequence[int], vectors: Vectors) -> None: ...

    def remove(self, ids: Sequence[int]) -> int: ...

    def search(self, queries: Vectors, k: int, threshold: float) -> list[Hits]: ...


MakeIndex = Callable[[int], AnyIndex]


def random_units(seed: int, n: int, dim: int = 16) -> Vectors:
    rows = np.random.default_rng(seed).standard_normal((n, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class VectorIndexContract:
    """The suite; see the module's docstring for what a subclass provides."""

    make_index: MakeIndex

    def test_finds_by_cosine_best_first(self) -> None:
        rows = random_units(0, 50)
        index = self.make_index(16)
        index.add(range(100, 150), rows)
        for hits, query in zip(index.search(rows[:5], 7, 0.0), rows[:5], strict=True):
            cosines = rows @ query
            order = [int(i) for i in np.argsort(-cosines)[:7] if cosines[i] >= 0.0]
            assert [i for i, _ in hits] == [100 + i for i in order]
            assert [c for _, c in hits] == pytest.approx([min(1.0, cosines[i]) for i in order], abs=1e-6)

    def test_similarity_is_no_distance_and_scale_does_not_count(self) -> None:
        index = self.make_index(2)
        # By inner product of raw rows 2 would win, by L2 distance 3; by cosine it is 1.
        index.add([1, 2, 3], np.array([[0.01, 0.0], [50.0, 50.0], [0.9, 0.5]], np.float32))
        ((best, second, third),) = index.search(np.array([[7.0, 0.0]], np.float32), 3, 0.0)
        assert [best[0], second[0], third[0]] == [1, 3, 2]
        assert best[1] == 1.0
        assert third[1] == pytest.approx(2**-0.5)

    def test_threshold_is_a_lower_bound(self) -> None:
        index = self.make_index(2)
        angles = np.radians([0, 30, 60, 90, 180])
        index.add(range(5), np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
        query = np.array([[1.0, 0.0]], np.float32)
        for threshold, found in ((0.0, [0, 1, 2, 3]), (0.5, [0, 1, 2]), (0.51, [0, 1]), (1.0, [0])):
            assert [i for i, _ in index.search(query, 5, threshold)[0]] == found

    def test_threshold_one_finds_identical_rows_and_no_near_ones(self) -> None:
        rows = random_units(1, 200, 384)
        near = rows + 0.002 * random_units(2, 200, 384)
        index = self.make_index(384)
        index.add(range(200), rows)
        assert [[i for i, _ in hits] for hits in index.search(rows, 3, 1.0)] == [[i] for i in range(200)]
        assert index.search(near, 3, 1.0) == [[] for _ in range(200)]
        assert all(c <= 1.0 for hits in index.search(rows, 1, 0.9) for _, c in hits)

    def test_every_query_gets_its_own_answer(self) -> None:
        rows = random_units(3, 100)
        index = self.make_index(16)
        index.add(range(100), rows)
        assert [hits[0][0] for hits in index.search(rows, 1, 0.0)] == list(range(100))

    def test_a_hit_does_not_depend_on_what_else_is_asked(self) -> None:
        rows = random_units(8, 300, 384)
        index = self.make_index(384)
        index.add(range(300), rows)
        queries = rows + 0.02 * random_units(9, 300, 384)
        together = index.search(queries, 2, 0.5)
        assert together == [index.search(query[None], 2, 0.5)[0] for query in queries]
        assert together[:7] == index.search(queries[:7], 2, 0.5)

    def test_of_equal_rows_the_lowest_ids_are_found(self) -> None:
        # As many rows as FAISS and BLAS cut up into several parts, with edges that they multiply otherwise.
        rows = np.repeat(random_units(11, 3, 384), 401, axis=0)
        index = self.make_index(384)
        index.add(range(9000, 9000 + len(rows)), rows)
        wanted = [9000, 9401, 9802]
        for copies in (1, 3, 112):
            found = index.search(np.repeat(rows[::401], copies, axis=0), 5, 0.9)
            assert [[i for i, _ in hits] for hits in found] == [
                list(range(first, first + 5)) for first in wanted for _ in range(copies)
            ]

    def test_ids_survive_the_removal_of_others(self) -> None:
        rows = random_units(4, 40)
        index = self.make_index(16)
        index.add(range(40), rows)
        assert index.remove([0, 7, 39, 99, 7]) == 3
        assert len(index) == 37
        for i, hits in enumerate(index.search(rows, 1, 0.999)):
            assert [h for h, _ in hits] == ([] if i in (0, 7, 39) else [i])

    def test_a_removed_row_takes_no_place_among_the_best(self) -> None:
        index = self.make_index(2)
        index.add(range(4), np.array([[1, 0], [1, 0.1], [1, 0.2], [0, 1]], np.float32))
        index.remove([0, 1])
        ((first, second),) = index.search(np.array([[1, 0]], np.float32), 4, 0.0)
        assert (first[0], second[0]) == (2, 3)

    def test_removed_space_is_used_again(self) -> None:
        index = self.make_index(16)
        for round_ in range(20):
            rows = random_units(round_, 30)
            index.add(range(round_ * 30, round_ * 30 + 30), rows)
            assert [h[0][0] for h in index.search(rows, 1, 0.99)] == list(range(round_ * 30, round_ * 30 + 30))
            assert index.remove(range(round_ * 30, round_ * 30 + 30)) == 30
        assert len(index) == 0
        assert index.search(random_units(0, 2), 3, 0.0) == [[], []]

    def test_adding_a_known_id_overwrites_it(self) -> None:
        index = self.make_index(2)
        index.add([5], np.array([[1, 0]], np.float32))
        index.add([5], np.array([[0, 1]], np.float32))
        assert len(index) == 1
        assert index.search(np.array([[0, 1], [1, 0]], np.float32), 2, 0.5) == [[(5, 1.0)], []]

    def test_fewer_rows_than_asked_for(self) -> None:
        index = self.make_index(16)
        rows = random_units(5, 2)
        assert index.search(rows, 10, 0.0) == [[], []]
        index.add([3], rows[:1])
        assert [len(hits) for hits in index.search(rows[:1], 10, 0.0)] == [1]

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0])
    def test_rows_without_a_direction_are_refused(self, bad: float) -> None:
        index = self.make_index(3)
        index.add([1], np.array([[1, 0, 0]], np.float32))
        rows = np.array([[1, 1, 1], [bad, 0, 0]], np.float32)
        with pytest.raises(TensorError, match="embedding"):
            index.add([2, 3], rows)
        with pytest.raises(TensorError, match="embedding"):
            index.search(rows, 1, 0.5)
        assert len(index) == 1

    def test_other_shapes_are_refused(self) -> None:
        index = self.make_index(3)
        for rows in (np.ones((1, 4)), np.ones(3), np.ones((1, 1, 3))):
            with pytest.raises(TensorError, match="dimension 3"):
                index.add([1], rows.astype(np.float32))
        with pytest.raises(TensorError, match="2 ids"):
            index.add([1, 2], np.ones((1, 3), np.float32))
        with pytest.raises(InputError, match="negative"):
            index.add([-1], np.ones((1, 3), np.float32))

    def test_adds_and_removals_beside_searches(self) -> None:
        index = self.make_index(64)
        rows = random_units(6, 400, 64)
        index.add(range(100), rows[:100])
        stop = threading.Event()

        def search() -> None:
            while not stop.is_set():
                hits = index.search(rows[:100], 1, 0.99)
                assert [h[0][0] for h in hits] == list(range(100))

        with ThreadPoolExecutor(2) as pool:
            searches = [pool.submit(search) for _ in range(2)]
            for round_ in range(30):
                ids = range(100 + 10 * round_, 110 + 10 * round_)
                index.add(ids, rows[ids.start : ids.stop])
                if round_ % 2:
                    index.remove(ids)
            stop.set()
            for future in searches:
                future.result()
        assert len(index) == 100 + 150
