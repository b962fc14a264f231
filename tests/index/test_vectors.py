"""Rows that move during a search, memory that comes back, and equal answers whatever multiplies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import kvboost.index.vectors as module
from kvboost.index.vectors import BLOCK_ROWS, VectorIndex
from tests.contracts.vector_index import random_units


def test_a_row_moved_during_a_search_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_units(1, BLOCK_ROWS + 10, 8)
    index = VectorIndex(8)
    index.add(range(len(rows)), rows)
    scanned = []
    original = module.scan

    def meddling(*args: object) -> object:
        """Remove an early row, so that the last one moves, between the scans of two blocks."""
        found = original(*args)  # type: ignore[arg-type]
        if not scanned:
            thread = threading.Thread(target=index.remove, args=([0],))
            thread.start()
            scanned.append(thread)
        return found

    monkeypatch.setattr(module, "scan", meddling)
    last = len(rows) - 1
    ((hit,),) = index.search(rows[last:], 1, 0.999)
    scanned[0].join()
    assert hit[0] == last


def test_removal_frees_the_blocks() -> None:
    index = VectorIndex(32)
    rows = random_units(2, 4 * BLOCK_ROWS, 32)
    index.add(range(len(rows)), rows)
    full = index.nbytes
    index.remove(range(100, len(rows)))
    assert index.nbytes < full / 50
    assert [hits[0][0] for hits in index.search(rows[:100], 1, 0.99)] == list(range(100))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' malloc keeps what is freed")
def test_removal_gives_memory_back_to_the_system() -> None:
    # In a process of its own: what other tests left in malloc's hands would blur the figures.
    code = """
import numpy as np
import psutil
from kvboost.index.vectors import VectorIndex
def resident():
    return psutil.Process().memory_info().rss
rng = np.random.default_rng(0)
index = VectorIndex(256)
index.add([10**6], np.ones((1, 256), np.float32))
empty = resident()
for start in range(0, 60000, 2000):
    index.add(range(start, start + 2000), rng.standard_normal((2000, 256), dtype=np.float32))
full = resident()
for start in range(2000, 60000, 2000):
    index.remove(range(start, start + 2000))
print(full - empty, resident() - empty)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=230)
    full, left = map(int, done.stdout.split())
    assert full > 60_000 * 256 * 4
    assert left < full / 2


_ANSWERS = """
import numpy as np
from kvboost.index.vectors import VectorIndex
from tests.contracts.vector_index import random_units
centres = random_units(1, 40, 384)
near = centres.repeat(125, 0) + 1e-7 * np.random.default_rng(2).standard_normal((5000, 384))
index = VectorIndex(384)
index.add(range(5000), near)
index.add(range(5000, 10000), centres.repeat(125, 0))
queries = np.concatenate([centres, centres + .03 * random_units(3, 40, 384)]).repeat(5, 0)
for size in (1, 4, 50, 400):
    print([index.search(queries[:size], 5, threshold) for threshold in (.9, .6)])
"""
_KERNELS = ("", "Prescott", "Haswell", "SkylakeX")


def _runs_here(kernel: str) -> bool:
    needed = {"Haswell": "AVX2", "SkylakeX": "AVX512_SKX"}.get(kernel)
    return needed is None or bool(np._core._multiarray_umath.__cpu_features__.get(needed))  # type: ignore[attr-defined]


def test_equal_and_nearly_equal_rows_are_found_alike_by_every_kernel() -> None:
    """OpenBLAS, in NumPy and in FAISS, takes a processor for the one that it is told, and then rounds otherwise."""
    running = []
    for kernel in filter(_runs_here, _KERNELS):
        for threads in ("1", "2"):
            own = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
            environment = {**os.environ, **own, **({"OPENBLAS_CORETYPE": kernel} if kernel else {})}
            command = [sys.executable, "-c", _ANSWERS]
            running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    answers = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running)
    assert answers[0]
    assert answers == answers[:1] * len(answers)
