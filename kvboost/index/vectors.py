"""Nearest vectors by cosine similarity, with ids that survive removal.

Both implementations keep rows in a slot array and normalise every row themselves, so that an inner product is
the cosine whatever scale an embedder returns. Removal moves the last row into the freed slot: nothing is left
behind that a search could return, and no other id changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import faiss
import numpy as np
import numpy.typing as npt

from kvboost.errors import InputError, TensorError
from kvboost.index.rwlock import ReadWriteLock
from kvboost.protocols import Vectors

COSINE_ROUNDING = 1e-6
"""float32 rounding of a cosine of unit vectors. A hit needs ``cosine >= threshold - COSINE_ROUNDING``, so a
threshold of 1.0 finds identical embeddings and nothing that is measurably apart."""

Hits = list[tuple[int, float]]
_Ids = npt.NDArray[np.int64]
_FIRST_SLOTS = 64


class VectorIndex(Protocol):
    """Vectors of one namespace and one embedder. Safe to use from several threads."""

    def __len__(self) -> int: ...

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Store ``[len(ids), dim]`` rows under non-negative ids; a known id is overwritten.

        Raises
        ------
        TensorError
            If a row is of another width, not finite, or zero. Nothing is stored then.
        """
        ...

    def remove(self, ids: Sequence[int]) -> int:
        """Remove rows; return how many were there."""
        ...

    def search(self, queries: Vectors, k: int, threshold: float) -> list[Hits]:
        """Return for each ``[n, dim]`` query at most ``k`` pairs of id and cosine, best first.

        Only pairs with ``cosine >= threshold`` (up to :data:`COSINE_ROUNDING`) are returned; cosines are
        clipped to ``[-1, 1]``.
        """
        ...


def unit_rows(vectors: Vectors, dim: int) -> Vectors:
    """Return a contiguous float32 copy of ``[n, dim]`` rows scaled to unit length.

    Raises
    ------
    TensorError
        If the shape is not ``[n, dim]``, or a row is not finite or zero.
    """
    rows = np.asarray(vectors, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise TensorError(f"embedding shape {rows.shape} does not fit this index of dimension {dim}")
    if not np.isfinite(rows).all():
        raise TensorError("embedding holds NaN or infinity; check the embedding model")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (norms > 0).all():
        raise TensorError("embedding is a zero vector and has no direction; check the embedding model")
    return np.ascontiguousarray(rows / norms, dtype=np.float32)


class _SlotIndex:
    """The slot array and its bookkeeping; subclasses bring the search kernel."""

    def __init__(self, dim: int) -> None:
        if dim < 1:
            raise InputError(f"dim {dim} must be at least 1")
        self._dim = dim
        self._rows: Vectors = np.zeros((_FIRST_SLOTS, dim), np.float32)
        self._ids: _Ids = np.zeros(_FIRST_SLOTS, np.int64)
        self._slots: dict[int, int] = {}
        self._lock = ReadWriteLock()

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        rows = unit_rows(vectors, self._dim)
        if len(ids) != len(rows):
            raise TensorError(f"{len(ids)} ids were given for {len(rows)} embeddings")
        if any(i < 0 for i in ids):
            raise InputError("vector ids must not be negative")
        with self._lock.write():
            self._reserve(len(self._slots) + len(ids))
            for vector_id, row in zip(ids, rows, strict=True):
                slot = self._slots.setdefault(vector_id, len(self._slots))
                self._ids[slot] = vector_id
                self._rows[slot] = row

    def remove(self, ids: Sequence[int]) -> int:
        with self._lock.write():
            return sum(self._remove_one(vector_id) for vector_id in ids)

    def search(self, queries: Vectors, k: int, threshold: float) -> list[Hits]:
        if k < 1:
            raise InputError(f"k {k} must be at least 1")
        wanted = unit_rows(queries, self._dim)
        with self._lock.read():
            n = len(self._slots)
            if n == 0 or len(wanted) == 0:
                return [[] for _ in wanted]
            cosines, slots = self._nearest(wanted, self._rows[:n], min(k, n))
            # FAISS pads with slot -1 where it finds fewer than k.
            return [
                [
                    (int(self._ids[slot]), max(-1.0, min(1.0, float(cosine))))
                    for cosine, slot in zip(*row, strict=True)
                    if slot >= 0 and cosine >= threshold - COSINE_ROUNDING
                ]
                for row in zip(cosines, slots, strict=True)
            ]

    def _nearest(self, queries: Vectors, rows: Vectors, k: int) -> tuple[Vectors, _Ids]:
        """Return cosines and slots ``[n, k]``, best first."""
        raise NotImplementedError

    def _reserve(self, wanted: int) -> None:
        size = len(self._ids)
        if wanted > size:
            size = max(wanted, 2 * size)
            self._rows = np.concatenate([self._rows, np.zeros((size - len(self._rows), self._dim), np.float32)])
            self._ids = np.concatenate([self._ids, np.zeros(size - len(self._ids), np.int64)])

    def _remove_one(self, vector_id: int) -> bool:
        slot = self._slots.pop(vector_id, None)
        if slot is None:
            return False
        last = len(self._slots)
        if slot != last:
            self._rows[slot] = self._rows[last]
            self._ids[slot] = self._ids[last]
            self._slots[int(self._ids[slot])] = slot
        self._rows[last] = 0.0
        return True


class FaissIndex(_SlotIndex):
    """FAISS's exact inner-product search; right up to some 200,000 chunks a namespace.

    FAISS takes its BLAS path only from ``queries * dim >= 128000``: fewer queries are searched one by one
    (64 x 384 dimensions: 14 ms at 10,000 rows, 370 ms at 100,000, one thread). An ID selector would switch BLAS
    off altogether, hence one index per namespace and no filters. An add beside a search crashes: hence the lock.
    """

    def _nearest(self, queries: Vectors, rows: Vectors, k: int) -> tuple[Vectors, _Ids]:
        cosines, slots = faiss.knn(queries, rows, k, metric=faiss.METRIC_INNER_PRODUCT)
        return cosines, slots


class BruteForceIndex(_SlotIndex):
    """The NumPy reference that FAISS is held to in the tests; also a fallback where FAISS does not load."""

    def _nearest(self, queries: Vectors, rows: Vectors, k: int) -> tuple[Vectors, _Ids]:
        cosines = queries @ rows.T
        slots = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(cosines, slots, axis=1), slots
