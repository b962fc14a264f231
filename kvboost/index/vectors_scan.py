"""The product of queries with a block of rows, and the best of many blocks."""

from __future__ import annotations

import faiss
import numpy as np
import numpy.typing as npt

from kvboost.index.vectors import COSINE_ROUNDING, Hits, Ids
from kvboost.protocols import Vectors

FAISS_BLAS_FROM = 128_000
"""``queries * dim`` from which FAISS multiplies whole blocks; below it takes query by query, row by row.

Milliseconds of one thread for 384 dimensions, threshold .85, k 5 (NumPy over blocks of 2,048 rows / FAISS at once):

======== ============ ============ ============ ============ ============ ============
rows     1 query      4            16           64           333          512
======== ============ ============ ============ ============ ============ ============
10,000   .31 / .25    .90 / 1.1    1.6 / 5.4    4.8 / 11     21 / 67      32 / 32
100,000  5.0 / 5.2    12 / 21      20 / 73      48 / 330     214 / 1,711  327 / 329
======== ============ ============ ============ ============ ============ ============

So NumPy's product serves every call that FAISS would not multiply, and FAISS the rest: equal in time, and it keeps
the best of a row as it goes, where a low threshold would make NumPy sort them out.
"""

_PENDING = 65_536


def scan(queries: Vectors, rows: Vectors, k: int, threshold: float) -> tuple[Ids, Ids, Vectors]:
    """Return query numbers, row numbers and cosines of the pairs at or above the threshold, in no order.

    At most about ``k`` pairs a query, the best, are returned where many pass. Both inputs are unit rows,
    ``[n, dim]`` and ``[m, dim]``.
    """
    k = min(k, len(rows))
    if k == 0 or len(queries) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    floor = threshold - COSINE_ROUNDING
    numbers, found = _candidates(queries, rows, k, floor - COSINE_ROUNDING)
    # A block product rounds by the number of queries; a hit must not depend on what else is asked.
    cosines = np.einsum("ij,ij->i", queries[numbers], rows[found])
    passing = cosines >= floor
    return numbers[passing], found[passing], cosines[passing]


def _candidates(queries: Vectors, rows: Vectors, k: int, floor: float) -> tuple[Ids, Ids]:
    """Return query and row numbers of the pairs at or above ``floor``, of at most about ``k`` rows a query."""
    if queries.size >= FAISS_BLAS_FROM:
        products, found = faiss.knn(queries, rows, k, metric=faiss.METRIC_INNER_PRODUCT)
        passing = (found >= 0) & (products >= floor)
        return np.nonzero(passing)[0], found[passing]
    product = queries @ rows.T
    # A whole row is never sorted: at a threshold in use next to nothing passes it.
    flat = np.flatnonzero(product >= floor)
    if len(flat) > 2 * k * len(queries):
        best = np.argpartition(product, len(rows) - k, axis=1)[:, len(rows) - k :]
        flat = (best + np.arange(len(queries))[:, None] * len(rows)).ravel()
        flat = flat[product.ravel()[flat] >= floor]
    numbers, found = np.divmod(flat, len(rows))
    return numbers, found


class Best:
    """Collects candidates of many blocks; keeps the ``k`` best of each query, each id once."""

    def __init__(self, queries: int, k: int) -> None:
        self._queries = queries
        self._k = k
        self._parts: list[tuple[Ids, Ids, Vectors]] = []
        self._pending = 0

    def add(self, numbers: Ids, ids: Ids, cosines: Vectors) -> None:
        """Take candidates: query numbers, ids and cosines."""
        if len(ids):
            self._parts.append((numbers, ids, cosines))
            self._pending += len(ids)
        if self._pending > _PENDING:
            self._parts = [self._thinned()]
            self._pending = 0

    def hits(self) -> list[Hits]:
        """Return for each query its hits, best first; of equal cosines the lower id first."""
        hits: list[Hits] = [[] for _ in range(self._queries)]
        if self._parts:
            numbers, ids, cosines = self._thinned()
            clipped = np.clip(cosines, -1.0, 1.0)
            for number, vector_id, cosine in zip(numbers.tolist(), ids.tolist(), clipped.tolist(), strict=True):
                hits[number].append((vector_id, cosine))
        return hits

    def _thinned(self) -> tuple[Ids, Ids, Vectors]:
        numbers, ids, cosines = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        numbers, ids, cosines = _first_of_each(numbers, ids, cosines)
        order = np.lexsort((ids, -cosines, numbers))
        numbers, ids, cosines = numbers[order], ids[order], cosines[order]
        starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        rank = np.arange(len(numbers)) - np.repeat(starts, np.diff(np.r_[starts, len(numbers)]))
        kept: npt.NDArray[np.bool_] = rank < self._k
        return numbers[kept], ids[kept], cosines[kept]


def _first_of_each(numbers: Ids, ids: Ids, cosines: Vectors) -> tuple[Ids, Ids, Vectors]:
    """Drop the second sight of a row that was moved while the search went on."""
    order = np.lexsort((-cosines, ids, numbers))
    numbers, ids, cosines = numbers[order], ids[order], cosines[order]
    new = np.r_[True, (numbers[1:] != numbers[:-1]) | (ids[1:] != ids[:-1])]
    return numbers[new], ids[new], cosines[new]
