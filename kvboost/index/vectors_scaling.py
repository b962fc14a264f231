"""The index that a namespace uses: exact while it is small, approximate beyond, changed in the background."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import faiss

from kvboost.errors import InputError
from kvboost.index.vectors import Hits, Piece, RowIndex
from kvboost.index.vectors_cells import Placed, train
from kvboost.index.vectors_exact import ExactIndex
from kvboost.index.vectors_file import load, save
from kvboost.index.vectors_ivf import IvfIndex
from kvboost.protocols import Vectors

EXACT_UP_TO = 200_000
"""Rows up to which every row is compared: 64 queries of 384 dimensions take some 100 ms there."""

_log = logging.getLogger(__name__)
_FETCH_ROWS = 1024
_SETTLED = 256
_ROUNDS = 8
_NICENESS = 5


class ScalingIndex:
    """A :class:`~kvboost.index.vectors.VectorIndex` that rebuilds itself as it grows and shrinks.

    It becomes approximate above ``exact_up_to`` rows, is trained anew at four times the rows that it was last
    trained for, built anew when half of its rows have left (which frees their memory), and is exact again below
    half of ``exact_up_to``. The successor is built on a thread of low priority beside the live index: filled,
    then brought up to date with the ids that changed meanwhile until few are left, and swapped in. Searches never
    wait for that; a writer waits while the last few hundred ids are carried over.

    Parameters
    ----------
    dim
        Length of a vector.
    exact_up_to
        Rows up to which search is exact.
    seed
        Of the sample that cells are trained on.
    live
        An index of this dimension to begin with, which nobody else writes to; None for an empty one.
    """

    def __init__(
        self, dim: int, *, exact_up_to: int = EXACT_UP_TO, seed: int = 0, live: RowIndex | None = None
    ) -> None:
        if exact_up_to < 1:
            raise InputError(f"exact_up_to {exact_up_to} must be at least 1")
        self._exact_up_to = exact_up_to
        self._seed = seed
        self._live: RowIndex = live or ExactIndex(dim)
        self._built_for = self._most = len(self._live)
        self._not_before = 0
        self._writing = threading.Lock()
        self._changed: set[int] | None = None
        self._builder: threading.Thread | None = None
        self._closed = False
        with self._writing:
            self._note(())

    def __len__(self) -> int:
        return len(self._live)

    @property
    def live(self) -> RowIndex:
        """The index that searches go to at present."""
        return self._live

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._live.dim

    @property
    def nbytes(self) -> int:
        """Bytes held for rows, ids and tables, about; a successor in the making comes on top."""
        return self._live.nbytes

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        with self._writing:
            self._live.add(ids, vectors)
            self._note(ids)

    def remove(self, ids: Sequence[int]) -> int:
        with self._writing:
            removed = self._live.remove(ids)
            self._note(ids)
            return removed

    def search(self, queries: Vectors, k: int, threshold: float) -> list[Hits]:
        return self._live.search(queries, k, threshold)

    def save(self, path: Path, embedder: str) -> int:
        """Write the index while it stays in use; see :func:`~kvboost.index.vectors_file.save`."""
        return save(self._live, path, embedder)

    @classmethod
    def load(cls, path: Path, embedder: str, dim: int, *, exact_up_to: int = EXACT_UP_TO) -> ScalingIndex:
        """Return the index that was saved, ready to search; see :func:`~kvboost.index.vectors_file.load`."""
        return cls(dim, exact_up_to=exact_up_to, live=load(path, embedder, dim))

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until no successor is in the making; return False if ``timeout_s`` ran out first."""
        while (builder := self._builder) is not None:
            builder.join(timeout_s)
            if builder.is_alive():
                return False
        return True

    def close(self) -> None:
        self._closed = True

    def _note(self, ids: Sequence[int]) -> None:
        """Remember what changed for a successor in the making, or see whether one is wanted."""
        rows = len(self._live)
        self._most = max(self._most, rows)
        if self._changed is not None:
            self._changed.update(int(i) for i in ids)
        elif self._wants_successor(rows) and not self._closed:
            self._changed = set()
            self._builder = threading.Thread(target=self._succeed, name="kvboost-index")
            self._builder.start()

    def _wants_successor(self, rows: int) -> bool:
        if rows < self._not_before:
            return False
        if not isinstance(self._live, IvfIndex):
            return rows > self._exact_up_to
        return rows < self._exact_up_to // 2 or rows > 4 * self._built_for or rows < self._most // 2

    def _succeed(self) -> None:
        """Build the successor and swap it in; a failure leaves the live index as it is."""
        _give_way()
        try:
            self._catch_up(self._build())
            _give_back()
        except _GivenUpError:
            self._end(None)
        # Out of memory, most likely; the live index goes on, so this costs time, not answers.
        except Exception as error:  # noqa: BLE001
            _log.warning("building a larger vector index failed with %s: %s", type(error).__name__, error)
            self._not_before = 2 * len(self._live)
            self._end(None)

    def _build(self) -> RowIndex:
        live = self._live
        if len(live) <= self._exact_up_to:
            small = ExactIndex(live.dim)
            for piece in live.pieces():
                self._pause()
                small.insert(Piece(piece.ids, piece.rows))
            return small
        large = IvfIndex(train(live, self._seed, self._pause))
        placed = Placed(large.cells)
        for piece in live.pieces():
            self._pause()
            placed.place(piece)
        large.reserve(placed.sizes())
        for piece in live.pieces():
            self._pause()
            large.insert(placed.of(piece))
        return large

    def _catch_up(self, successor: RowIndex) -> None:
        for _ in range(_ROUNDS):
            with self._writing:
                if len(changed := self._changed or set()) <= _SETTLED:
                    break
                self._changed = set()
            self._carry_over(sorted(changed), successor)
        with self._writing:
            self._carry_over(sorted(self._changed or ()), successor)
            self._end_locked(successor)

    def _carry_over(self, ids: Sequence[int], successor: RowIndex) -> None:
        for start in range(0, len(ids), _FETCH_ROWS):
            own = ids[start : start + _FETCH_ROWS]
            there = self._live.fetch(own)
            successor.remove(own)
            successor.insert(there)

    def _end(self, successor: RowIndex | None) -> None:
        with self._writing:
            self._end_locked(successor)

    def _end_locked(self, successor: RowIndex | None) -> None:
        if successor is not None:
            self._live = successor
            self._not_before = 0
            self._built_for = self._most = len(successor)
        self._changed = self._builder = None

    def _pause(self) -> None:
        """Give up when closed, or when the program ends: it would wait for this thread."""
        if self._closed or not threading.main_thread().is_alive():
            raise _GivenUpError


class _GivenUpError(Exception):
    """Nobody wants the successor any more."""


def _give_way() -> None:
    """Let requests go before this thread: one core, and on Linux a low priority of its own."""
    faiss.omp_set_num_threads(1)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _give_back() -> None:
    """Let the system have the memory of the lists that are gone: of 470 MB malloc gave back 5 by itself."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
