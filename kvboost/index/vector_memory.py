"""Vectors of late, so that a text embedded for a look-up is not embedded again when it is stored."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from blake3 import blake3

from kvboost.errors import TensorError
from kvboost.protocols import Embedder, Vectors

MAX_VECTORS = 4096

_Key = tuple[str, bytes]


class VectorMemory:
    """Asks an embedder for the texts that it was not asked for lately. Safe to use from several threads.

    Keeps hashes of the texts, not the texts. Namespaces are kept apart: by how long an answer takes nobody learns
    what another tenant's texts are.

    Parameters
    ----------
    max_vectors
        Vectors kept, those used longest ago leave first; 6 MiB of 384 dimensions by default.
    """

    def __init__(self, embedder: Embedder, max_vectors: int = MAX_VECTORS) -> None:
        self._embedder = embedder
        self._max_vectors = max_vectors
        self._known: OrderedDict[_Key, Vectors] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def embed(self, namespaces: Sequence[str], texts: Sequence[str]) -> Vectors:
        """Return ``[len(texts), dim]`` rows, of the texts of as many namespaces.

        Raises
        ------
        TensorError
            If the embedder returns another shape. It may raise anything itself.
        """
        keys = [(namespace, blake3(text.encode()).digest()) for namespace, text in zip(namespaces, texts, strict=True)]
        with self._lock:
            found = {key: self._known[key] for key in keys if key in self._known}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if new:
            rows = self._embedder.embed(list(new.values()))
            if rows.shape != (len(new), self._embedder.dim):
                raise TensorError(f"embeddings have shape {rows.shape}, not ({len(new)}, {self._embedder.dim})")
            found.update(zip(new, rows, strict=True))
        self._remember({key: found[key] for key in keys})
        return np.stack([found[key] for key in keys]) if keys else np.zeros((0, self._embedder.dim), np.float32)

    def forget(self, namespace: str | None = None) -> None:
        """Drop the vectors of one namespace, or all."""
        with self._lock:
            for key in [key for key in self._known if namespace is None or key[0] == namespace]:
                del self._known[key]

    def _remember(self, vectors: dict[_Key, Vectors]) -> None:
        # The index refuses a vector without direction; the model is asked again then.
        usable = {key: row for key, row in vectors.items() if np.isfinite(row).all() and row.any()}
        with self._lock:
            for key, row in usable.items():
                self._known[key] = row
                self._known.move_to_end(key)
            while len(self._known) > self._max_vectors:
                self._known.popitem(last=False)
