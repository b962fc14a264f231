"""Nearest vectors by cosine similarity, with ids that survive removal: what every vector index promises.

Rows are normalised by the index, so that an inner product is the cosine whatever scale an embedder returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvboost.errors import InputError, TensorError
from kvboost.protocols import Vectors

COSINE_ROUNDING = 1e-6
"""float32 rounding of a cosine of unit vectors. A hit needs ``cosine >= threshold - COSINE_ROUNDING``, so a
threshold of 1.0 finds identical embeddings and nothing that is measurably apart."""

Hits = list[tuple[int, float]]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Copies of neighbouring rows of an index.

    Attributes
    ----------
    ids
        ``[n]``.
    rows
        ``[n, dim]`` float32 of unit length.
    cells
        ``[n]``, the cell of each in an approximate index; None where that is not known.
    """

    ids: Ids
    rows: Vectors
    cells: Ids | None = None


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
        clipped to ``[-1, 1]``. Rows that come, leave or change while the search runs may or may not be among
        them; all others are judged as if it had run alone.
        """
        ...

    def close(self) -> None:
        """Give up work in the background, without waiting for its end. The index stays usable as it is."""
        ...


class RowIndex(VectorIndex, Protocol):
    """A vector index whose rows can be read back, to build another index from them or to save them."""

    @property
    def dim(self) -> int:
        """Length of a vector."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held for rows, ids and tables, about."""
        ...

    def ids(self) -> Ids:
        """Return the ids of all rows, in no order."""
        ...

    def fetch(self, ids: Sequence[int]) -> Piece:
        """Return copies of the rows with these ids, in this order; those that are not there are left out."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """Yield every row. A row that stays untouched meanwhile is yielded at least once."""
        ...

    def insert(self, piece: Piece) -> None:
        """Add unit rows that another index gave, as they are; if they have cells, these must be those of this index."""
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


def checked(ids: Sequence[int], vectors: Vectors, dim: int) -> Vectors:
    """Return the unit rows to add under ``ids``; raises as :meth:`VectorIndex.add`."""
    rows = unit_rows(vectors, dim)
    if len(ids) != len(rows):
        raise TensorError(f"{len(ids)} ids were given for {len(rows)} embeddings")
    if any(i < 0 for i in ids):
        raise InputError("vector ids must not be negative")
    return rows


def check_search(k: int) -> None:
    """Refuse a number of hits that no search can return."""
    if k < 1:
        raise InputError(f"k {k} must be at least 1")


def check_dim(dim: int) -> None:
    """Refuse a dimension that no vector has."""
    if dim < 1:
        raise InputError(f"dim {dim} must be at least 1")
