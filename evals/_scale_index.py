"""What a search, a change, a save and a load cost in a vector index of a given size, and what it finds."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from evals._scale_vectors import DIM, ScaleVectors
from kvboost.index.vectors import Hits, Piece, VectorIndex
from kvboost.index.vectors_exact import ExactIndex
from kvboost.index.vectors_ivf import IvfIndex
from kvboost.index.vectors_scaling import ScalingIndex
from kvboost.protocols import Vectors

QUERIES = (4, 64)
NOMINEES = 4
_KNOWN_SHARE = 0.5
_REPEATS = 7
_CHANGES = 200
_PAUSE_S = 0.5
_RECALL_QUERIES = 256
_NAME = "evals.scale"
_FIRST_NEW = 1 << 40
Row = dict[str, Any]


class IndexMeasurement:
    """All figures of one size.

    Parameters
    ----------
    chunks
        Rows in the index.
    exact_up_to
        Where the index turns approximate; above it there are rows for both kinds.
    batches
        Of 256 queries, for recall.
    """

    def __init__(self, vectors: ScaleVectors, chunks: int, threshold: float, exact_up_to: int, batches: int) -> None:
        self._vectors = vectors
        self._chunks = chunks
        self._threshold = threshold
        self._exact_up_to = exact_up_to
        self._recall = [vectors.queries(chunks, _RECALL_QUERIES, 1.0, 1000 + n) for n in range(batches)]

    def rows(self) -> Iterator[Row]:
        """Yield a row for each kind of index and number of queries."""
        before = _resident()
        exact = ExactIndex(DIM)
        start = time.perf_counter()
        for ids, rows in self._vectors.parts(self._chunks):
            exact.insert(Piece(np.array(ids, np.int64), rows))
        build_s = time.perf_counter() - start
        resident = _resident() - before
        wanted = [exact.search(queries, 1, self._threshold) for queries in self._recall]
        default = self._chunks <= self._exact_up_to
        figures = {"build_s": build_s, "resident_bytes": resident, **self._figures(exact, wanted, wanted)}
        yield from self._each(exact, {"index": "exact", "default": default, **figures})
        if default:
            return
        start = time.perf_counter()
        index = ScalingIndex(DIM, exact_up_to=self._exact_up_to, live=exact)
        del exact
        meanwhile = self._search_meanwhile(index)
        build_s = time.perf_counter() - start
        gc.collect()
        figures = {"build_s": build_s, "resident_bytes": _resident() - before, **meanwhile}
        found = [index.search(queries, 1, self._threshold) for queries in self._recall]
        figures |= self._figures(index, found, wanted)
        if isinstance(index.live, IvfIndex):
            cells = index.live.cells
            figures |= {"cells": len(cells), "probes": cells.probes_at(self._threshold)}
        yield from self._each(index, {"index": "ivf", "default": True, **figures})

    def _each(self, index: VectorIndex, figures: Row) -> Iterator[Row]:
        for count in QUERIES:
            taken = [
                _seconds(lambda own: index.search(own, NOMINEES, self._threshold), [queries])[0]
                for queries in (self._vectors.queries(self._chunks, count, _KNOWN_SHARE, n) for n in range(_REPEATS))
            ]
            times = {"search_s": median(taken), "search_min_s": min(taken), "search_max_s": max(taken)}
            yield {"chunks": self._chunks, "queries": count, **times, **figures}

    def _figures(
        self, index: ExactIndex | ScalingIndex, found: Sequence[Sequence[Hits]], wanted: Sequence[Sequence[Hits]]
    ) -> Row:
        pairs = [pair for own, best in zip(found, wanted, strict=True) for pair in zip(own, best, strict=True)]
        hits = [(own, best) for own, best in pairs if best]
        # Of two rows alike either is the nearest.
        same = [bool(own) and own[0][1] >= best[0][1] - 1e-6 for own, best in hits]
        figures: Row = {
            "recall_at_1": sum(same) / len(same),
            "recall_hits": len(same),
            "bytes": index.nbytes,
            **self._changes(index),
        }
        return figures | self._saved(index)

    def _changes(self, index: VectorIndex) -> Row:
        rows = self._vectors.rows(1 << 29)[:_CHANGES]
        ids = range(_FIRST_NEW, _FIRST_NEW + _CHANGES)
        add_s = _seconds(lambda i: index.add([ids[i]], rows[i : i + 1]), range(_CHANGES))
        remove_s = _seconds(lambda i: index.remove([ids[i]]), range(_CHANGES))
        return {"add_s": median(add_s), "remove_s": median(remove_s)}

    def _saved(self, index: ExactIndex | ScalingIndex) -> Row:
        """Return seconds of saving and loading, of the index that the size asks for."""
        if isinstance(index, ExactIndex):
            if self._chunks > self._exact_up_to:
                return {}
            index = ScalingIndex(DIM, exact_up_to=self._exact_up_to, live=index)
        with tempfile.TemporaryDirectory(prefix="kvboost-") as folder:
            path = Path(folder) / "index"
            (save_s,) = _seconds(lambda to: index.save(to, _NAME), [path])
            start = time.perf_counter()
            again = ScalingIndex.load(path, _NAME, DIM, exact_up_to=self._exact_up_to)
            load_s = time.perf_counter() - start
            queries = self._recall[0][:64]
            same = _nearest(again.search(queries, 1, self._threshold)) == _nearest(
                index.search(queries, 1, self._threshold)
            )
            file_bytes = path.stat().st_size
        return {"save_s": save_s, "load_s": load_s, "file_bytes": file_bytes, "same_when_loaded": same}

    def _search_meanwhile(self, index: ScalingIndex) -> Row:
        """Search and change the index while its successor is built; return what that took."""
        queries = self._vectors.queries(self._chunks, QUERIES[0], _KNOWN_SHARE, 77)
        rows = self._vectors.rows(1 << 28)
        searches: list[float] = []
        changes: list[float] = []
        # With pauses: the searches of one caller would take the processor that the successor is built on.
        while not searches or not index.settle(max(_PAUSE_S, 5 * searches[-1])):
            searches += _seconds(lambda own: index.search(own, NOMINEES, self._threshold), [queries])
            changes += _seconds(lambda row: self._come_and_go(index, row), [rows[len(changes) % len(rows)][None]])
        return {
            "building_searches": len(searches),
            "building_search_s": median(searches),
            "building_search_max_s": max(searches),
            "building_change_s": median(changes),
            "building_change_max_s": max(changes),
        }

    def _come_and_go(self, index: VectorIndex, row: Vectors) -> None:
        index.add([_FIRST_NEW], row)
        index.remove([_FIRST_NEW])


def _seconds(call: Callable[[Any], object], arguments: Sequence[Any]) -> list[float]:
    taken = []
    for argument in arguments:
        start = time.perf_counter()
        call(argument)
        taken.append(time.perf_counter() - start)
    return taken


def _nearest(hits: Sequence[Hits]) -> list[int | None]:
    return [own[0][0] if own else None for own in hits]


def _resident() -> int:
    """Return the bytes of this process in memory; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * 4096
