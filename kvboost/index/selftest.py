"""Is the FAISS of this machine right, and is its BLAS path sane?

FAISS multiplies by BLAS from ``queries * dim >= 128000`` and by its own loops below. Its bundled OpenBLAS may take the
processor for another one and then be slower by a large factor, so both paths are held to NumPy: the results of both,
and the time of the first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import faiss
import numpy as np
import numpy.typing as npt

from kvboost.protocols import Vectors

_Ids = npt.NDArray[np.int64]

DIM, ROWS, NEIGHBOURS = 384, 4096, 4
FEW, MANY = 8, 400
"""Queries below and above the border of 128,000 numbers."""
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Whether both paths found the nearest rows, and the seconds of the BLAS path and of NumPy for the same product."""

    right: bool
    blas_s: float
    numpy_s: float

    @property
    def slowness(self) -> float:
        """How many times as long as NumPy's product FAISS took; it also has the best rows to find."""
        return self.blas_s / self.numpy_s


def self_test() -> SelfTest:
    """Search random vectors, each of whose neighbours are known; takes about a tenth of a second."""
    random = np.random.default_rng(0)
    rows = _unit(random.standard_normal((ROWS, DIM), dtype=np.float32))
    queries = _unit(rows[:MANY] + 0.02 * random.standard_normal((MANY, DIM), dtype=np.float32))
    faiss.knn(queries, rows, NEIGHBOURS, metric=faiss.METRIC_INNER_PRODUCT)  # the first call starts threads
    blas_s, numpy_s = np.inf, np.inf
    for _ in range(2):
        started_s = time.perf_counter()
        many = faiss.knn(queries, rows, NEIGHBOURS, metric=faiss.METRIC_INNER_PRODUCT)
        blas_s = min(blas_s, time.perf_counter() - started_s)
        started_s = time.perf_counter()
        cosines = queries @ rows.T
        numpy_s = min(numpy_s, time.perf_counter() - started_s)
    few = faiss.knn(queries[:FEW], rows, NEIGHBOURS, metric=faiss.METRIC_INNER_PRODUCT)
    return SelfTest(_right(many, cosines) and _right(few, cosines[:FEW]), blas_s, numpy_s)


def _right(found: tuple[Vectors, _Ids], cosines: Vectors) -> bool:
    """Return whether the best row is the right one, and every cosine is that of its row and among the best."""
    scores, slots = found
    best = -np.sort(-cosines, axis=1)[:, :NEIGHBOURS]
    if not ((slots >= 0) & (slots < cosines.shape[1])).all():
        return False
    own = np.take_along_axis(cosines, slots, axis=1)
    first = bool((slots[:, 0] == cosines.argmax(axis=1)).all())
    return first and bool(np.allclose(scores, best, atol=TOLERANCE) and np.allclose(own, best, atol=TOLERANCE))


def _unit(rows: Vectors) -> Vectors:
    unit: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit
