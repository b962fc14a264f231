"""Approximate search: rows in cells around centroids, of which a search visits the nearest."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import faiss
import numpy as np

from kvboost.index.rwlock import ReadWriteLock
from kvboost.index.vectors import COSINE_ROUNDING, Hits, Ids, Piece, check_search, checked, unit_rows
from kvboost.index.vectors_cells import Cells
from kvboost.index.vectors_scan import Best, scan
from kvboost.protocols import Vectors

WHOLE_FROM = 1 / 7
"""Share of cells from which all are scanned instead: a block product takes about a seventh of the time a row that
FAISS's walk through the lists takes (48 ms against 330 ms for 64 queries of 100,000 rows)."""

_QUERIES_PER_HOLD = 16
_CELLS_PER_HOLD = 8
_ROWS_PER_HOLD = 256
_TABLE_BYTES = 64


class IvfIndex:
    """A :class:`~kvboost.index.vectors.RowIndex` over FAISS's IVF-Flat with a hash table from id to place.

    A search below the thresholds that the cells were tuned for visits all cells, and is exact. FAISS crashes on a
    search beside an add, so a lock stands between; it is held for a few queries at a time. FAISS keeps the
    memory of removed rows for later ones: it is freed by building anew, which
    :class:`~kvboost.index.vectors_scaling.ScalingIndex` does.
    """

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self._dim = int(cells.centroids.shape[1])
        # FAISS only keeps the lists: which of them to visit is decided here, by a block product.
        self._quantizer = faiss.IndexFlatIP(self._dim)
        self._quantizer.add(cells.centroids)
        self._index = faiss.IndexIVFFlat(self._quantizer, self._dim, len(cells), faiss.METRIC_INNER_PRODUCT)
        self._index.set_direct_map_type(faiss.DirectMap.Hashtable)
        self._ids: set[int] = set()
        self._lock = ReadWriteLock()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def nbytes(self) -> int:
        row = 4 * self._dim + 8 + _TABLE_BYTES
        with self._lock.read():
            return self.cells.centroids.nbytes + sys.getsizeof(self._ids) + row * len(self._ids)

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        rows = checked(ids, vectors, self._dim)
        last = {int(vector_id): number for number, vector_id in enumerate(ids)}
        self.insert(Piece(np.fromiter(last, np.int64, len(last)), rows[list(last.values())]))

    def insert(self, piece: Piece) -> None:
        cells = self.cells.assign(piece.rows) if piece.cells is None else piece.cells
        for start in range(0, len(piece.ids), _ROWS_PER_HOLD):
            part = slice(start, start + _ROWS_PER_HOLD)
            own_rows, own, own_cells = (np.ascontiguousarray(a[part]) for a in (piece.rows, piece.ids, cells))
            with self._lock.write():
                self._remove(own.tolist())
                pointers = [faiss.swig_ptr(array) for array in (own_rows, own, own_cells)]
                self._index.add_core(len(own), *pointers, None)
                self._ids.update(own.tolist())

    def reserve(self, sizes: Ids) -> None:
        """Make room for ``[cells]`` rows, and a few more: without it FAISS holds half as much again as it needs."""
        with self._lock.write():
            for cell, size in enumerate(sizes.tolist()):
                if self._index.invlists.list_size(cell) == 0:
                    self._index.invlists.resize(cell, size + size // 16 + 4)
                    self._index.invlists.resize(cell, 0)

    def remove(self, ids: Sequence[int]) -> int:
        removed = 0
        for start in range(0, len(ids), _ROWS_PER_HOLD):
            with self._lock.write():
                removed += self._remove(ids[start : start + _ROWS_PER_HOLD])
        return removed

    def search(self, queries: Vectors, k: int, threshold: float) -> list[Hits]:
        check_search(k)
        wanted = unit_rows(queries, self._dim)
        best = Best(len(wanted), k)
        probes = self.cells.probes_at(threshold)
        if probes >= WHOLE_FROM * len(self.cells):
            self._scan_all(wanted, k, threshold, best)
        else:
            self._probe(wanted, probes, k, threshold, best)
        return best.hits()

    def close(self) -> None:
        """Do nothing: nothing runs in the background."""

    def ids(self) -> Ids:
        with self._lock.read():
            return np.fromiter(self._ids, np.int64, len(self._ids))

    def fetch(self, ids: Sequence[int]) -> Piece:
        with self._lock.read():
            there = np.array([i for i in ids if int(i) in self._ids], np.int64)
            empty = np.zeros((0, self._dim), np.float32)
            return Piece(there, self._index.reconstruct_batch(there) if len(there) else empty)

    def pieces(self) -> Iterator[Piece]:
        for cell in range(len(self.cells)):
            with self._lock.read():
                ids, rows = self._list(cell)
                piece = Piece(ids.copy(), rows.copy(), np.full(len(ids), cell, np.int64))
            yield piece

    def _remove(self, ids: Sequence[int]) -> int:
        there = {int(i) for i in ids} & self._ids
        if there:
            # The hash table takes no other selector than an array.
            self._index.remove_ids(np.fromiter(there, np.int64, len(there)))
            self._ids -= there
        return len(there)

    def _probe(self, queries: Vectors, probes: int, k: int, threshold: float, best: Best) -> None:
        near = queries @ self.cells.centroids.T
        cells = np.argpartition(near, len(self.cells) - probes, axis=1)[:, len(self.cells) - probes :]
        parameters = faiss.SearchParametersIVF(nprobe=probes)
        for start in range(0, len(queries), _QUERIES_PER_HOLD):
            part = slice(start, start + _QUERIES_PER_HOLD)
            own = queries[part]
            own_cells = np.ascontiguousarray(cells[part], np.int64)
            own_near = np.ascontiguousarray(np.take_along_axis(near[part], own_cells, axis=1))
            cosines = np.empty((len(own), k), np.float32)
            found = np.empty((len(own), k), np.int64)
            pointers = [faiss.swig_ptr(array) for array in (own_cells, own_near, cosines, found)]
            with self._lock.read():
                self._index.search_preassigned_c(len(own), faiss.swig_ptr(own), k, *pointers, False, parameters)
            # FAISS pads with id -1 where it finds fewer than k.
            passing = (found >= 0) & (cosines >= threshold - COSINE_ROUNDING)
            best.add(np.nonzero(passing)[0] + start, found[passing], cosines[passing])

    def _scan_all(self, queries: Vectors, k: int, threshold: float, best: Best) -> None:
        for start in range(0, len(self.cells), _CELLS_PER_HOLD):
            with self._lock.read():
                for cell in range(start, min(start + _CELLS_PER_HOLD, len(self.cells))):
                    ids, rows = self._list(cell)
                    numbers, found, cosines = scan(queries, rows, k, threshold)
                    best.add(numbers, ids[found], cosines)

    def _list(self, cell: int) -> tuple[Ids, Vectors]:
        """Return views of a cell's ids and rows, good while the lock is held."""
        lists = self._index.invlists
        size = lists.list_size(cell)
        if size == 0:
            return np.zeros(0, np.int64), np.zeros((0, self._dim), np.float32)
        codes = faiss.rev_swig_ptr(lists.get_codes(cell), size * 4 * self._dim)
        return faiss.rev_swig_ptr(lists.get_ids(cell), size), codes.view(np.float32).reshape(size, self._dim)
