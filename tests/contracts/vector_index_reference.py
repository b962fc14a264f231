"""The plainest index that keeps the contract: what the others are held to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvboost.index.vectors_rows import COSINE_ROUNDING, Hits, check_dim, check_search, checked, unit_rows
from kvboost.protocols import Vectors


class ReferenceIndex:
    """Rows in a dictionary, compared one with all by a sort."""

    def __init__(self, dim: int) -> None:
        check_dim(dim)
        self._dim = dim
        self._rows: dict[int, Vectors] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        self._rows = {**self._rows, **dict(zip(ids, checked(ids, vectors, self._dim), strict=True))}

    def remove(self, ids: Sequence[int]) -> int:
        gone = set(ids) & self._rows.keys()
        self._rows = {i: row for i, row in self._rows.items() if i not in gone}
        return len(gone)

    def search(self, queries: Vectors, k: int, threshold: float) -> list[Hits]:
        check_search(k)
        stored = self._rows
        rows = np.array(list(stored.values()), np.float64).reshape(-1, self._dim)
        hits = []
        for query in unit_rows(queries, self._dim).astype(np.float64):
            cosines = np.clip(np.einsum("ij,j->i", rows, query), -1, 1)
            found = zip(stored, cosines.tolist(), strict=True)
            best = sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k]
            hits.append([hit for hit in best if hit[1] >= threshold - COSINE_ROUNDING])
        return hits
