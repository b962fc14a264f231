"""Chunk embeddings by a sentence-transformers model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from kvboost.errors import InputError
from kvboost.extras import check_version, require
from kvboost.protocols import Vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def check_embedder_library() -> None:
    """Refuse a sentence-transformers that is missing or too old.

    Raises
    ------
    MissingExtraError, UnsupportedVersionError
    """
    require("cache", "an embedding model (embedder.model none does without)", "sentence_transformers")
    check_version("sentence-transformers", "5.4", "", "an embedding model")


class SentenceTransformerEmbedder:
    """An :class:`~kvboost.protocols.Embedder`; the model is loaded at first use.

    A model reads a limited number of its own tokens (all-MiniLM-L6-v2: 256) and ignores the rest of a longer
    text, so chunks should stay below that. Safe to use from several threads; one batch is embedded at a time,
    since fast tokenizers refuse to be used by two threads at once.

    Parameters
    ----------
    model
        A local directory, or an id on the model hub.
    device
        Where to run it; None leaves the choice to sentence-transformers.
    batch_size
        Texts per forward pass.
    revision
        Of a model on the hub; part of :attr:`name`.
    """

    def __init__(
        self, model: str | Path, *, device: str | None = None, batch_size: int = 32, revision: str | None = None
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size {batch_size} must be at least 1")
        if isinstance(model, Path) and not model.is_dir():
            raise InputError(f"embedding model {model} is not a directory; give a local directory or a hub id")
        self._source = str(model)
        self._device = device
        self._batch_size = batch_size
        self._revision = revision
        self._lock = threading.Lock()
        self._loaded: SentenceTransformer | None = None

    @cached_property
    def name(self) -> str:
        """``directory@digest of its files`` or ``hub id@revision``; known without loading the model."""
        root = Path(self._source)
        if not root.is_dir():
            return f"{self._source}@{self._revision or 'main'}"
        digest = blake3()
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            name = file.relative_to(root).as_posix().encode()
            digest.update(len(name).to_bytes(8, "little") + name + file.stat().st_size.to_bytes(8, "little"))
            digest.update_mmap(file)
        return f"{root.resolve().name}@{digest.hexdigest()[:16]}"

    @cached_property
    def dim(self) -> int:
        """Length of a vector; loads the model."""
        return int(self.embed(["dimension"]).shape[1])

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``[len(texts), dim]`` float32 rows of unit length."""
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        with self._lock:
            rows = self._model().encode(
                list(texts),
                batch_size=self._batch_size,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        found = np.ascontiguousarray(rows, dtype=np.float32)
        # A static model gives no direction to a text without words, such as a blank line: these are all alike.
        found[~found.any(axis=1), :1] = 1.0
        return found

    def _model(self) -> SentenceTransformer:
        if self._loaded is None:
            # Imported here: it takes seconds, and a cache without similar look-ups never needs it.
            check_embedder_library()
            from sentence_transformers import SentenceTransformer

            self._loaded = SentenceTransformer(self._source, device=self._device, revision=self._revision)
        return self._loaded
