"""Rows of a vector index: unit vectors with ids, checked before they are taken in.

Rows are normalised by the index, so that an inner product is the cosine whatever scale an embedder returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvboost.errors import InputError, TensorError
from kvboost.protocols import Vectors

COSINE_ROUNDING = 1e-6
"""What storing unit vectors as float32 does to their cosine. A hit needs ``cosine >= threshold - COSINE_ROUNDING``,
so a threshold of 1.0 finds identical embeddings and nothing that is measurably apart."""

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
    """

    ids: Ids
    rows: Vectors


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
    """Return the unit rows to add under ``ids``; raises as :meth:`~kvboost.index.vectors.VectorIndex.add`."""
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
