"""Nominees by embedding: chunks are embedded when they are stored, and again where a look-up has nothing better."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from kvboost.errors import UnknownNamespaceError
from kvboost.index.lookup import Gap
from kvboost.index.room import Room
from kvboost.index.vector_memory import VectorMemory
from kvboost.index.vectors import VectorIndex
from kvboost.index.vectors_rows import Hits
from kvboost.index.worker import EmbeddingReport, EmbeddingWorker
from kvboost.protocols import Embedder
from kvboost.types import MatchQuery

_log = logging.getLogger(__name__)

_USUAL_DIM = 384


class Nominator:
    """What a cache knows of likeness. Safe to use from several threads.

    Parameters
    ----------
    embedder
        Turns chunk texts into vectors; None nominates nobody.
    batch, max_waiting
        As in :class:`~kvboost.index.worker.EmbeddingWorker`.

    Attributes
    ----------
    vector_dim
        Length of a vector as far as it is known; 0 without an embedder. Asking the embedder would load its model.
    failed_lookups
        Queries whose texts could not be embedded.
    """

    def __init__(self, embedder: Embedder | None, batch: int, max_waiting: int) -> None:
        self._memory = VectorMemory(embedder) if embedder is not None else None
        self._lock = threading.Lock()
        self._worker: EmbeddingWorker[tuple[Room, int]] = EmbeddingWorker(self._file, batch, max_waiting)
        self.vector_dim = _USUAL_DIM if embedder is not None else 0
        self.failed_lookups = 0

    def submit(self, room: Room, vector_id: int, text: str) -> None:
        """Embed a stored chunk in the background and file its vector."""
        if self._memory is not None:
            self._worker.submit((room, vector_id), text)

    def find(
        self, vectors: VectorIndex | None, query: MatchQuery, gaps: Sequence[Gap], ranked: bool
    ) -> list[tuple[Gap, Hits]]:
        """Return the vectors near the chunks of ``gaps``; none if embedding failed.

        Ranked gaps, the likely ones first, are embedded batch by batch, each twice the last, until a batch finds
        nobody. An embedding costs about a tenth of computing its chunk with a small model, so it pays where one in a
        few finds a donor. A prompt of boilerplate, which shares runs of tokens with the cache in every chunk and has
        no donor, costs the first batch only: an eighth of its chunks. (A limit in seconds would make the answer depend
        on how busy the machine is.) Gaps without a ranking are all embedded at once.
        """
        found: list[tuple[Gap, Hits]] = []
        size = first_batch(len(query.chunks)) if ranked else len(gaps)
        while len(found) < len(gaps):
            batch = gaps[len(found) : len(found) + size]
            hits = self._search(vectors, query, batch)
            if hits is None:
                break
            found += zip(batch, hits, strict=True)
            if not any(hits):
                break
            size *= 2
        return found

    def forget(self, namespace: str) -> None:
        """Drop what is remembered of a namespace's texts."""
        if self._memory is not None:
            self._memory.forget(namespace)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until the chunks stored so far are embedded; return False if ``timeout_s`` ran out first."""
        return self._worker.flush(timeout_s)

    def report(self) -> EmbeddingReport:
        """Return what became of the texts of stored chunks."""
        return self._worker.report()

    def close(self) -> None:
        """Forget what waits, and wait for the batch in progress."""
        self._worker.close()
        if self._memory is not None:
            self._memory.forget()

    def _search(self, vectors: VectorIndex | None, query: MatchQuery, gaps: Sequence[Gap]) -> list[Hits] | None:
        """Embed the gaps' texts in one batch and search them; None if that failed."""
        if self._memory is None or vectors is None or query.threshold is None:
            return None
        try:
            with self._worker.paused():
                embedded = self._memory.embed([query.namespace] * len(gaps), [gap.chunk.text for gap in gaps])
            return vectors.search(embedded, query.max_nominees, query.threshold)
        # A failing model costs the nominees, not the matches that were found by hash.
        except Exception as error:  # noqa: BLE001
            with self._lock:
                self.failed_lookups += 1
            _log.warning("embedding a query failed with %s; matched by hash alone", type(error).__name__)
            return None

    def _file(self, keys: Sequence[tuple[Room, int]], texts: Sequence[str]) -> None:
        """Embed stored chunks and file their vectors, unless the chunks have left meanwhile."""
        wanted = [i for i, (room, vector_id) in enumerate(keys) if _wants(room, vector_id)]
        if self._memory is None or not wanted:
            return
        rows = self._memory.embed([keys[i][0].key for i in wanted], [texts[i] for i in wanted])
        self.vector_dim = rows.shape[1]
        for row, i in zip(rows, wanted, strict=True):
            room, vector_id = keys[i]
            with suppress(UnknownNamespaceError), room.table() as table:
                if table.wants_vector(vector_id):
                    if table.vectors is None:
                        table.vectors = VectorIndex(len(row))
                    table.vectors.add([vector_id], row[None])


def _wants(room: Room, vector_id: int) -> bool:
    with suppress(UnknownNamespaceError), room.table() as table:
        return table.wants_vector(vector_id)
    return False


def first_batch(num_chunks: int) -> int:
    """Return how many chunks of a prompt are embedded before anything was found."""
    return max(4, num_chunks // 8)
