"""Stand-ins for parts that are too slow for tests of other parts."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from kvboost.protocols import Vectors


class NgramEmbedder:
    """Signed hashes of character trigrams as unit vectors: edited texts come out close, unrelated ones far apart.

    It stands in for a sentence-transformers model, which takes seconds to load; that one is tested on its own.
    ``texts`` records what was embedded, in order.
    """

    name = "ngram@1"
    dim = 256

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts.extend(texts)
        rows = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(rows, texts, strict=True):
            padded = f"^^{text}$$"
            for i in range(len(padded) - 2):
                code = zlib.crc32(padded[i : i + 3].encode())
                row[code % self.dim] += 1.0 if code & 1024 else -1.0
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)
