"""The index that rebuilds itself: what it becomes, what it finds, and what it does not lose on the way."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from evals._scale_vectors import ScaleVectors
from kvboost.errors import InputError
from kvboost.index.vectors_cells import LEVELS, MIN_PROBES, Cells, train, turned
from kvboost.index.vectors_exact import BLOCK_ROWS, ExactIndex
from kvboost.index.vectors_ivf import IvfIndex
from kvboost.index.vectors_scaling import ScalingIndex
from kvboost.protocols import Vectors
from tests.contracts.vector_index import random_units


def rows_like_text(n: int, dim: int = 64) -> Vectors:
    return np.concatenate([rows for _, rows in ScaleVectors(0, dim).parts(n)])


def filled(n: int, exact_up_to: int, dim: int = 64) -> ScalingIndex:
    index = ScalingIndex(dim, exact_up_to=exact_up_to)
    index.add(range(n), rows_like_text(n, dim))
    assert index.settle(60)
    return index


def test_size_decides_what_it_is() -> None:
    rows = rows_like_text(3000)
    index = ScalingIndex(64, exact_up_to=1000)
    kinds = []
    for start in range(0, 3000, 500):
        index.add(range(start, start + 500), rows[start : start + 500])
        assert index.settle(60)
        kinds.append(type(index.live))
    assert kinds == [ExactIndex, ExactIndex, IvfIndex, IvfIndex, IvfIndex, IvfIndex]
    assert index.remove(range(400, 3000)) == 2600
    assert index.settle(60)
    assert type(index.live) is ExactIndex
    assert sorted(index.live.ids().tolist()) == list(range(400))
    assert [hits[0][0] for hits in index.search(rows[:400], 1, 0.99)] == list(range(400))


def test_it_is_trained_anew_when_it_has_outgrown_its_cells() -> None:
    rows = rows_like_text(9000)
    index = ScalingIndex(64, exact_up_to=500)
    for start, end in ((0, 600), (600, 2400), (2400, 9000)):
        index.add(range(start, end), rows[start:end])
        assert index.settle(60)
    assert isinstance(index.live, IvfIndex)
    assert len(index.live.cells) > 3 * len(train(filled(600, 500).live, 0, lambda: None))
    assert [hits[0][0] for hits in index.search(rows, 1, 0.999)] == list(range(9000))


@pytest.mark.parametrize("threshold", [0.85, 0.9, 0.95])
def test_hits_at_the_threshold_are_found(threshold: float) -> None:
    made = ScaleVectors(3, 128)
    approximate, exact = ScalingIndex(128, exact_up_to=1000), ExactIndex(128)
    for ids, rows in made.parts(16_000):
        approximate.add(ids, rows)
        exact.add(ids, rows)
    assert approximate.settle(120)
    assert isinstance(approximate.live, IvfIndex)
    assert approximate.live.cells.probes_at(threshold) < len(approximate.live.cells) / 7
    queries = np.concatenate([made.queries(16_000, 300, 1.0, seed) for seed in range(4)])
    wanted = exact.search(queries, 1, threshold)
    found = approximate.search(queries, 1, threshold)
    same = [bool(own) and own[0][0] == best[0][0] for own, best in zip(found, wanted, strict=True) if best]
    assert len(same) > 300
    assert np.mean(same) >= 0.99


def test_below_the_levels_every_cell_is_visited() -> None:
    index = filled(2000, 100)
    exact = ExactIndex(64)
    exact.add(range(2000), rows_like_text(2000))
    queries = random_units(5, 40, 64)
    assert [[i for i, _ in h] for h in index.search(queries, 5, -1.0)] == [
        [i for i, _ in h] for h in exact.search(queries, 5, -1.0)
    ]


def test_probes_fall_as_the_threshold_rises() -> None:
    cells = filled(4000, 100).live
    assert isinstance(cells, IvfIndex)
    asked = [cells.cells.probes_at(t) for t in (0.5, *LEVELS, 1.0)]
    assert asked == sorted(asked, reverse=True)
    assert asked[0] == len(cells.cells)
    assert asked[-1] >= MIN_PROBES


def test_nothing_is_lost_while_a_successor_is_built() -> None:
    rows = rows_like_text(6000)
    index = ScalingIndex(64, exact_up_to=1000)
    index.add(range(1000), rows[:1000])
    stop = threading.Event()

    def search() -> int:
        rounds = 0
        while not stop.is_set():
            assert [hits[0][0] for hits in index.search(rows[:100], 1, 0.99)] == list(range(100))
            rounds += 1
        return rounds

    present = set(range(1000))
    with ThreadPoolExecutor(2) as pool:
        searches = [pool.submit(search) for _ in range(2)]
        try:
            for start in range(1000, 6000, 50):
                index.add(range(start, start + 50), rows[start : start + 50])
                gone = range(start - 500, start - 470)
                assert index.remove(gone) == len(present & set(gone))
                # Overwritten by another row: the old one must not come back.
                index.add([start - 460], rows[start : start + 1])
                present = (present | set(range(start, start + 50))) - set(gone)
        finally:
            stop.set()
        assert all(s.result() > 0 for s in searches)
    assert index.settle(120)
    assert isinstance(index.live, IvfIndex)
    assert len(index) == len(present)
    assert set(index.live.ids().tolist()) == present
    overwritten = {start - 460: rows[start] for start in range(1000, 6000, 50)}
    there = index.live.fetch(sorted(present))
    for vector_id, row in zip(there.ids.tolist(), there.rows, strict=True):
        expected = overwritten.get(vector_id)
        np.testing.assert_allclose(row, rows[vector_id] if expected is None else expected, atol=1e-6)


def test_a_row_moved_during_a_search_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_units(1, BLOCK_ROWS + 10, 8)
    index = ExactIndex(8)
    index.add(range(len(rows)), rows)
    scanned = []

    class Meddling:
        """Removes an early row, so that the last one moves, between the scans of two blocks."""

        def __call__(self, *args: object) -> object:
            found = original(*args)  # type: ignore[arg-type]
            if not scanned:
                thread = threading.Thread(target=index.remove, args=([0],))
                thread.start()
                scanned.append(thread)
            return found

    import kvboost.index.vectors_exact as module

    original = module.scan
    monkeypatch.setattr(module, "scan", Meddling())
    last = len(rows) - 1
    ((hit,),) = index.search(rows[last:], 1, 0.999)
    scanned[0].join()
    assert hit[0] == last


def test_removal_frees_the_blocks() -> None:
    index = ExactIndex(32)
    rows = random_units(2, 4 * BLOCK_ROWS, 32)
    index.add(range(len(rows)), rows)
    full = index.nbytes
    index.remove(range(100, len(rows)))
    assert index.nbytes < full / 50
    assert [hits[0][0] for hits in index.search(rows[:100], 1, 0.99)] == list(range(100))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("exact_up_to", [10**6, 1000])
def test_removal_gives_memory_back_to_the_system(exact_up_to: int) -> None:
    # In a process of its own: what other tests left in malloc's hands would blur the figures.
    code = f"""
import numpy as np
from kvboost.index.vectors_scaling import ScalingIndex
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
rng = np.random.default_rng(0)
index = ScalingIndex(256, exact_up_to={exact_up_to})
index.add([10**6], np.ones((1, 256), np.float32))
empty = resident()
for start in range(0, 60000, 2000):
    index.add(range(start, start + 2000), rng.standard_normal((2000, 256), dtype=np.float32))
assert index.settle(200)
full = resident()
for start in range(2000, 60000, 2000):
    index.remove(range(start, start + 2000))
assert index.settle(200)
print(full - empty, resident() - empty)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=230)
    full, left = map(int, done.stdout.split())
    assert full > 60_000 * 256 * 4
    assert left < full / 2


def test_degenerate_rows_are_no_trouble() -> None:
    index = ScalingIndex(8, exact_up_to=100)
    same = np.tile(random_units(1, 1, 8), (400, 1))
    index.add(range(400), np.concatenate([same[:300], -same[300:]]))
    assert index.settle(60)
    assert isinstance(index.live, IvfIndex)
    assert [c for _, c in index.search(same[:1], 5, 0.9)[0]] == pytest.approx([1.0] * 5)


def test_turned_rows_have_the_cosine_asked_for() -> None:
    rows = rows_like_text(200)
    wanted = np.linspace(0.7, 1.0, 200)
    made = turned(rows, wanted, np.random.default_rng(0))
    np.testing.assert_allclose((made * rows).sum(axis=1), wanted, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1.0, atol=1e-5)


def test_a_closed_index_builds_nothing_and_goes_on() -> None:
    rows = rows_like_text(3000)
    index = ScalingIndex(64, exact_up_to=1000)
    index.add(range(2000), rows[:2000])
    index.close()
    index.add(range(2000, 3000), rows[2000:])
    assert index.settle(60)
    live = index.live
    index.add([3000], random_units(0, 1, 64))
    assert index.settle(0)
    assert index.live is live
    assert [hits[0][0] for hits in index.search(rows, 1, 0.99)] == list(range(3000))


def test_a_failing_build_leaves_the_live_index(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> Cells:
        raise MemoryError("no room")

    monkeypatch.setattr("kvboost.index.vectors_scaling.train", fail)
    index = filled(1500, 1000)
    assert isinstance(index.live, ExactIndex)
    assert "MemoryError" in caplog.text
    index.add([5000], random_units(0, 1, 64))
    assert index.settle(0)
    assert len(index) == 1501


def test_a_program_ends_while_a_successor_is_built() -> None:
    code = """
import numpy as np
from kvboost.index.vectors_scaling import ScalingIndex
index = ScalingIndex(384, exact_up_to=1000)
index.add(range(40000), np.random.default_rng(0).standard_normal((40000, 384), dtype=np.float32))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_switch_needs_a_size() -> None:
    with pytest.raises(InputError, match="exact_up_to"):
        ScalingIndex(8, exact_up_to=0)
