"""The best rows of a block for some queries, and the best of many blocks; the same on every machine.

A float32 product rounds by its shape, by the number of threads and by what the processor's kernels do, so it only
proposes: what might be among the best is multiplied again in float64, pair by pair, and judged by that.
"""

from __future__ import annotations

import faiss
import numpy as np
import numpy.typing as npt

from kvboost.index.vectors_rows import COSINE_ROUNDING, Hits, Ids
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

Cosines = npt.NDArray[np.float64]

_PENDING = 65_536
_PAIRS = 2_048


def scan(queries: Vectors, rows: Vectors, k: int, threshold: float) -> tuple[Ids, Ids, Cosines]:
    """Return query numbers, row numbers and cosines of pairs at or above the threshold, in no order.

    The ``k`` best of each query are among them, with all rows that are as near as the last of these; of the others
    some. Both inputs are unit rows, ``[n, dim]`` and ``[m, dim]``.
    """
    k = min(k, len(rows))
    if k == 0 or len(queries) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    # No order of summation errs by more than half of this on unit vectors.
    slack = queries.shape[1] * float(np.finfo(np.float32).eps)
    floor = threshold - COSINE_ROUNDING
    propose = _by_faiss if queries.size >= FAISS_BLAS_FROM else _by_product
    numbers, found = propose(queries, rows, k, floor - slack, slack)
    cosines = _cosines(queries, rows, numbers, found)
    passing = cosines >= floor
    return numbers[passing], found[passing], cosines[passing]


def _by_product(queries: Vectors, rows: Vectors, k: int, floor: float, slack: float) -> tuple[Ids, Ids]:
    """Return query and row numbers of the pairs at or above ``floor`` that may be among the ``k`` best of a query."""
    product = queries @ rows.T
    # A whole row is never sorted: at a threshold in use next to nothing passes it.
    flat = np.flatnonzero(product >= floor)
    if len(flat) > 2 * k * len(queries):
        last = np.partition(product, len(rows) - k, axis=1)[:, len(rows) - k, None]
        flat = np.flatnonzero(product >= np.maximum(last - 2 * slack, floor))
    numbers, found = np.divmod(flat, len(rows))
    return numbers, found


def _by_faiss(queries: Vectors, rows: Vectors, k: int, floor: float, slack: float) -> tuple[Ids, Ids]:
    """Return the same by FAISS, which keeps a fixed number of rows: where more may be among the best, by product."""
    products, found = faiss.knn(queries, rows, min(k + 1, len(rows)), metric=faiss.METRIC_INNER_PRODUCT)
    last = np.maximum(products[:, k - 1] - 2 * slack, floor)
    tied = (products[:, -1] >= last) & (found.shape[1] < len(rows))
    numbers, at = np.nonzero((found >= 0) & (products >= floor) & ~tied[:, None])
    more, theirs = _by_product(queries[tied], rows, k, floor, slack)
    return np.concatenate([numbers, np.flatnonzero(tied)[more]]), np.concatenate([found[numbers, at], theirs])


def _cosines(queries: Vectors, rows: Vectors, numbers: Ids, found: Ids) -> Cosines:
    """Return the cosine of each pair in float64; a few at a time, since pairs may be as many as rows."""
    cosines = np.empty(len(numbers))
    for start in range(0, len(numbers), _PAIRS):
        part = slice(start, start + _PAIRS)
        own, theirs = queries[numbers[part]].astype(np.float64), rows[found[part]].astype(np.float64)
        cosines[part] = np.einsum("ij,ij->i", own, theirs)
    return cosines


class Best:
    """Collects candidates of many blocks; keeps the ``k`` best of each query, each id once."""

    def __init__(self, queries: int, k: int) -> None:
        self._queries = queries
        self._k = k
        self._parts: list[tuple[Ids, Ids, Cosines]] = []
        self._pending = 0

    def add(self, numbers: Ids, ids: Ids, cosines: Cosines) -> None:
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

    def _thinned(self) -> tuple[Ids, Ids, Cosines]:
        numbers, ids, cosines = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        numbers, ids, cosines = _first_of_each(numbers, ids, cosines)
        order = np.lexsort((ids, -cosines, numbers))
        numbers, ids, cosines = numbers[order], ids[order], cosines[order]
        starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        rank = np.arange(len(numbers)) - np.repeat(starts, np.diff(np.r_[starts, len(numbers)]))
        kept: npt.NDArray[np.bool_] = rank < self._k
        return numbers[kept], ids[kept], cosines[kept]


def _first_of_each(numbers: Ids, ids: Ids, cosines: Cosines) -> tuple[Ids, Ids, Cosines]:
    """Drop the second sight of a row that was moved while the search went on."""
    order = np.lexsort((-cosines, ids, numbers))
    numbers, ids, cosines = numbers[order], ids[order], cosines[order]
    new = np.r_[True, (numbers[1:] != numbers[:-1]) | (ids[1:] != ids[:-1])]
    return numbers[new], ids[new], cosines[new]
