"""A baseline that knows no language: hashed character n-grams."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvboost.protocols import Vectors


@dataclass(frozen=True, slots=True)
class HashedNgrams:
    """Signed counts of character n-grams, hashed into ``dim`` cells; an :class:`~kvboost.protocols.Embedder`."""

    dim: int = 512
    sizes: tuple[int, ...] = (2, 3)

    @property
    def name(self) -> str:
        """Names its settings."""
        return f"hashed {'+'.join(map(str, self.sizes))}-grams, {self.dim} dimensions"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``[len(texts), dim]`` float32 rows of unit length."""
        rows = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(rows, texts, strict=True):
            padded = f" {text.casefold()} "
            grams = [padded[i : i + size] for size in self.sizes for i in range(max(len(padded) - size + 1, 1))]
            codes = np.array([zlib.crc32(gram.encode()) for gram in grams])
            np.add.at(row, codes % self.dim, np.where(codes & 0x10000, 1.0, -1.0))
            row[0] += 1e-6  # counts of opposite sign may cancel, and a zero vector has no direction
        unit: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit
