"""Learned boundaries: cut where neighbouring sentences stop resembling each other.

The idea is TextTiling's (Hearst, "TextTiling: Segmenting Text into Multi-paragraph Subtopic Passages", 1997) with
sentence embeddings in place of word counts. TextTiling compares a dip with the peaks on both sides and sets its
threshold by the whole text's mean and deviation, so that any edit can move any boundary. Here a dip is judged by
the similarities before it in the same paragraph, and nothing else: boundaries stay as local as those of Punkt.
Only where appended text goes on with an unfinished sentence may the boundary before that sentence move too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np

from kvboost.errors import TensorError
from kvboost.protocols import Embedder, Vectors

# What neighbouring sentences of one topic score with small sentence encoders; it stands in until the paragraph
# has similarities of its own.
_USUAL_SIMILARITY = 0.35
_MAX_VECTORS = 4096


def dips(vectors: Vectors, window: int = 4, margin: float = 0.15) -> list[bool]:
    """Say for each sentence but the last of one paragraph whether a topic ends with it.

    Parameters
    ----------
    vectors
        ``[sentences, dim]`` unit rows.
    window
        How many similarities before a boundary it is compared with.
    margin
        How far below their mean its similarity must lie, as a cosine.

    Returns
    -------
    list of bool
        ``sentences - 1`` values. Each depends on the sentences up to the one after the boundary only.
    """
    similar = np.einsum("ij,ij->i", vectors[:-1], vectors[1:]).tolist()
    found = []
    for i, value in enumerate(similar):
        recent = [_USUAL_SIMILARITY, *similar[max(0, i - window) : i]]
        found.append(value < sum(recent) / len(recent) - margin)
    return found


class SentenceVectors:
    """Embeds sentences in one batch and remembers the latest of them. Safe to use from several threads."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: OrderedDict[str, Vectors] = OrderedDict()
        self._lock = Lock()

    def __call__(self, sentences: Sequence[str]) -> list[Vectors]:
        """Return a unit vector ``[dim]`` for each sentence.

        Raises
        ------
        TensorError
            If the embedder returns another shape than it announces, or values that are not finite.
        """
        with self._lock:
            found = {text: self._known[text] for text in sentences if text in self._known}
        new = [text for text in dict.fromkeys(sentences) if text not in found]
        if new:
            rows = self._embedder.embed(new)
            if rows.shape != (len(new), self._embedder.dim) or not np.isfinite(rows).all():
                raise TensorError(
                    f"embedder {self._embedder.name!r} must return {len(new)} finite rows of {self._embedder.dim} "
                    f"values, not shape {rows.shape}; check its model"
                )
            found.update(zip(new, rows, strict=True))
        with self._lock:
            for text in dict.fromkeys(sentences):
                self._known[text] = found[text]
                self._known.move_to_end(text)
            while len(self._known) > _MAX_VECTORS:
                self._known.popitem(last=False)
        return [found[text] for text in sentences]
