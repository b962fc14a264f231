"""Vectors that lie as chunk embeddings do, as many as wanted, and queries that are edited chunks.

A Gaussian mixture on three levels: topics, documents in them, chunks in those, all with the spectrum of real
embeddings. 1,500 passages of the Python documentation through all-MiniLM-L6-v2 gave a mean of length .42, shares of
variance that fall as ``(i + 2) ** -.75 * exp(-i / 130)`` over the principal axes (.0675 at the first, .0072 at the
32nd, .0003 at the 256th), and unrelated pairs at a median cosine of .17; changing one word in them gave cosines of
.81 / .955 / .995 (5 % / median / 95 %).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvboost.protocols import Vectors

DIM = 384
PART = 8192
_MEAN = 0.42
_SHARES = {"topic": 0.3, "document": 0.3, "chunk": 0.4}
_DOCUMENTS_PER_TOPIC, _CHUNKS_PER_DOCUMENT = 10, 20


class ScaleVectors:
    """The first ``n`` vectors are the same for every ``n``.

    Parameters
    ----------
    seed
        Which vectors are drawn.
    """

    def __init__(self, seed: int, dim: int = DIM) -> None:
        self._seed = seed
        self._dim = dim
        axes = np.arange(dim)
        spectrum = (axes + 2.0) ** -0.75 * np.exp(-axes / 130)
        self._scale = np.sqrt((1 - _MEAN**2) * spectrum / spectrum.sum()).astype(np.float32)

    def parts(self, n: int) -> Iterator[tuple[range, Vectors]]:
        """Yield ids and unit rows of the first ``n`` vectors."""
        for start in range(0, n, PART):
            ids = range(start, min(n, start + PART))
            yield ids, self.rows(start // PART)[: len(ids)]

    def rows(self, part: int) -> Vectors:
        """Return ``[PART, dim]`` unit rows, one part of all."""
        rng = np.random.default_rng([self._seed, part])
        chunks = np.arange(PART)
        made = self._noise(rng, PART) * _SHARES["chunk"] ** 0.5
        for name, size in (
            ("document", _CHUNKS_PER_DOCUMENT),
            ("topic", _CHUNKS_PER_DOCUMENT * _DOCUMENTS_PER_TOPIC),
        ):
            made += (self._noise(rng, PART // size + 1) * _SHARES[name] ** 0.5)[chunks // size]
        # The mean lies across the least axis, where nothing else is.
        made[:, -1] += _MEAN
        return made / np.linalg.norm(made, axis=1, keepdims=True)

    def queries(self, n: int, count: int, hit_share: float, seed: int) -> Vectors:
        """Return ``count`` unit rows: edited ones of the first ``n``, and unknown ones, mixed.

        An edited one has a cosine with its original that is drawn evenly from [.85, 1].
        """
        rng = np.random.default_rng([self._seed, seed, 1])
        originals = self.rows(int(rng.integers(max(1, n // PART))))
        chosen = originals[rng.integers(min(n, PART), size=count)]
        cosines = rng.uniform(0.85, 1.0, size=(count, 1)).astype(np.float32)
        across = self._noise(rng, count)
        across -= (across * chosen).sum(axis=1, keepdims=True) * chosen
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        edited = cosines * chosen + np.sqrt(1 - cosines**2) * across
        unknown = self.rows(1 << 30)[:count]
        return np.where(rng.random((count, 1)) < hit_share, edited, unknown).astype(np.float32)

    def _noise(self, rng: np.random.Generator, n: int) -> Vectors:
        made: Vectors = rng.standard_normal((n, self._dim), dtype=np.float32) * self._scale
        return made
