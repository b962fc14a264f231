"""What a search, a change, a save and a load cost in a vector index of a given size."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from evals._scale_vectors import DIM, ScaleVectors
from kvboost.index.vectors import VectorIndex
from kvboost.index.vectors_file import load, save
from kvboost.index.vectors_rows import Hits, Piece

QUERIES = (1, 4, 64, 512)
NOMINEES = 4
_KNOWN_SHARE = 0.5
_REPEATS = 7
_CHANGES = 200
_NAME = "evals.scale"
_FIRST_NEW = 1 << 40
Row = dict[str, Any]


class IndexMeasurement:
    """All figures of one size.

    Parameters
    ----------
    chunks
        Rows in the index.
    """

    def __init__(self, vectors: ScaleVectors, chunks: int, threshold: float) -> None:
        self._vectors = vectors
        self._chunks = chunks
        self._threshold = threshold

    def rows(self) -> Iterator[Row]:
        """Yield a row for each number of queries."""
        before = _resident()
        index = VectorIndex(DIM)
        start = time.perf_counter()
        for ids, rows in self._vectors.parts(self._chunks):
            index.insert(Piece(np.array(ids, np.int64), rows))
        build_s = time.perf_counter() - start
        figures = {"build_s": build_s, "resident_bytes": _resident() - before, "bytes": index.nbytes}
        figures |= self._changes(index) | self._saved(index)
        for count in QUERIES:
            queries = [self._vectors.queries(self._chunks, count, _KNOWN_SHARE, n) for n in range(_REPEATS)]
            taken, computed = _timed(lambda own: index.search(own, NOMINEES, self._threshold), queries)
            times = {"search_s": median(taken), "search_min_s": min(taken), "search_max_s": max(taken)}
            yield {"chunks": self._chunks, "queries": count, **times, "search_cpu_s": median(computed), **figures}

    def _changes(self, index: VectorIndex) -> Row:
        rows = self._vectors.rows(1 << 29)[:_CHANGES]
        ids = range(_FIRST_NEW, _FIRST_NEW + _CHANGES)
        add_s = _seconds(lambda i: index.add([ids[i]], rows[i : i + 1]), range(_CHANGES))
        remove_s = _seconds(lambda i: index.remove([ids[i]]), range(_CHANGES))
        return {"add_s": median(add_s), "remove_s": median(remove_s)}

    def _saved(self, index: VectorIndex) -> Row:
        with tempfile.TemporaryDirectory(prefix="kvboost-") as folder:
            path = Path(folder) / "index"
            (save_s,) = _seconds(lambda to: save(index, to, _NAME), [path])
            start = time.perf_counter()
            again = load(path, _NAME, DIM)
            load_s = time.perf_counter() - start
            queries = self._vectors.queries(self._chunks, 64, 1.0, 1000)
            same = _nearest(again.search(queries, 1, self._threshold)) == _nearest(
                index.search(queries, 1, self._threshold)
            )
            file_bytes = path.stat().st_size
        return {"save_s": save_s, "load_s": load_s, "file_bytes": file_bytes, "same_when_loaded": same}


def _seconds(call: Callable[[Any], object], arguments: Sequence[Any]) -> list[float]:
    return _timed(call, arguments)[0]


def _timed(call: Callable[[Any], object], arguments: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the seconds that each call took, and its seconds of processor time, of all threads."""
    taken, computed = [], []
    for argument in arguments:
        start, start_cpu = time.perf_counter(), time.process_time()
        call(argument)
        computed.append(time.process_time() - start_cpu)
        taken.append(time.perf_counter() - start)
    return taken, computed


def _nearest(hits: Sequence[Hits]) -> list[int | None]:
    return [own[0][0] if own else None for own in hits]


def _resident() -> int:
    """Return the bytes of this process in memory."""
    return int(psutil.Process().memory_info().rss)
