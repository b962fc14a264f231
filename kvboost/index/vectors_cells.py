"""Cells of an approximate index: centroids, and how many of them a search must visit.

Spherical k-means by FAISS. How many cells are visited ("probes") is not guessed: queries are made at exactly a
threshold from a sample of the rows, searched exactly, and the number is kept that finds nearly all of them. A
higher threshold needs fewer probes, so there is a number for each of some thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import faiss
import numpy as np
import numpy.typing as npt

from kvboost.index.vectors import Ids, Piece, RowIndex
from kvboost.protocols import Vectors

LEVELS = (0.7, 0.8, 0.85, 0.9, 0.95)
"""Thresholds that are tuned for. Below the first a search visits every cell and is exact."""

FOUND_SHARE = 0.996
"""Share of the sample's hits that must be found; the bound to keep is .99, on hits that were not sampled."""

MIN_PROBES = 4
_PER_BAND = 400
_QUERIES_PER_STEP = 64
_ROUNDS = 6
_ROWS_PER_CELL = 30
_ASSIGN_ROWS = 2048

Pause = Callable[[], None]
"""Called between steps of at most some seconds; raises to give the work up."""


@dataclass(frozen=True, slots=True)
class Cells:
    """What training leaves behind.

    Attributes
    ----------
    centroids
        ``[cells, dim]`` unit rows.
    levels, probes
        Rising thresholds, and the cells to visit at each.
    """

    centroids: Vectors
    levels: tuple[float, ...] = ()
    probes: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.centroids)

    def probes_at(self, threshold: float) -> int:
        """Return how many cells a search at this threshold visits."""
        fitting = [probes for level, probes in zip(self.levels, self.probes, strict=True) if level <= threshold]
        return min(fitting[-1], len(self)) if fitting else len(self)

    def assign(self, rows: Vectors) -> Ids:
        """Return the cell of each of ``[n, dim]`` unit rows."""
        parts = [
            (rows[start : start + _ASSIGN_ROWS] @ self.centroids.T).argmax(axis=1)
            for start in range(0, len(rows), _ASSIGN_ROWS)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


class Placed:
    """Remembers the cells of rows between two passes over them: one to count, one to fill."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._parts: list[tuple[Ids, npt.NDArray[np.int32]]] = []
        self._ids: Ids | None = None
        self._places: Ids | None = None

    def place(self, piece: Piece) -> None:
        """Assign the rows of a piece."""
        self._parts.append((piece.ids, self._cells.assign(piece.rows).astype(np.int32)))

    def sizes(self) -> Ids:
        """Return how many rows there are in each cell, ``[cells]``; ends the first pass."""
        ids, places = (np.concatenate([part[i] for part in self._parts] or [np.zeros(0, np.int64)]) for i in (0, 1))
        order = np.argsort(ids, kind="stable")
        self._ids, self._places = ids[order], places[order].astype(np.int64)
        return np.bincount(self._places, minlength=len(self._cells))

    def of(self, piece: Piece) -> Piece:
        """Return the piece with its cells; a row that was overwritten in between may come with its old one."""
        if self._ids is None or self._places is None or len(self._ids) == 0:
            return Piece(piece.ids, piece.rows)
        at = np.minimum(np.searchsorted(self._ids, piece.ids), len(self._ids) - 1)
        cells = self._places[at]
        new = self._ids[at] != piece.ids
        cells[new] = self._cells.assign(piece.rows[new])
        return Piece(piece.ids, piece.rows, cells)


def wanted_cells(rows: int) -> int:
    """Return how many cells suit this many rows."""
    return max(1, round(4 * math.sqrt(rows)))


def train(source: RowIndex, seed: int, pause: Pause) -> Cells:
    """Return cells for the rows of ``source``, which may change meanwhile."""
    rng = np.random.default_rng(seed)
    ids = source.ids()
    rows = _sample(source, ids, _ROWS_PER_CELL * wanted_cells(len(ids)), rng)
    count = min(wanted_cells(len(ids)), len(rows))
    if count < 2:
        return Cells(rows[:count])
    centroids: Vectors | None = None
    for _ in range(_ROUNDS):
        pause()
        # One round a call, so that the work can be given up in between.
        means = faiss.Kmeans(
            source.dim, count, niter=1, spherical=True, seed=seed, min_points_per_centroid=1,
            max_points_per_centroid=len(rows),
        )  # fmt: skip
        means.train(rows, init_centroids=centroids)
        centroids = means.centroids
    # Not the rows that were trained on: these lie nearer to their centroids than others.
    fresh = _sample(source, ids, _PER_BAND * len(LEVELS), rng)
    return tuned(source, Cells(_usable(np.asarray(centroids), rows)), fresh, rng, pause)


def tuned(source: RowIndex, cells: Cells, sample: Vectors, rng: np.random.Generator, pause: Pause) -> Cells:
    """Return the cells with the probes that each level needs, found by exact search of ``source``.

    The queries for a level are sampled rows, each :func:`turned` to a cosine drawn evenly between the level and 1.
    Edited chunks lie closer: one changed word left cosines of .81 / .955 / .995 (5 % / median / 95 %).
    """
    bands = list(pairwise((*LEVELS, 1.0)))
    cosines = np.concatenate([rng.uniform(*bands[i % len(bands)], 1) for i in range(len(sample))])
    queries = turned(sample, cosines, rng)
    ranks: list[int] = []
    weights: list[float] = []
    numbers: list[int] = []
    for start in range(0, len(queries), _QUERIES_PER_STEP):
        pause()
        for number, rank in _ranks(source, cells, queries[start : start + _QUERIES_PER_STEP]):
            low, high = bands[(start + number) % len(bands)]
            numbers.append((start + number) % len(bands))
            weights.append(high - low)
            ranks.append(rank)
    probes = []
    for level in range(len(LEVELS)):
        own = np.array(numbers, np.int64) >= level
        needed = _quantile(np.array(ranks, np.int64)[own], np.array(weights)[own], FOUND_SHARE) + 1
        probes.append(max(MIN_PROBES, needed))
    return Cells(cells.centroids, LEVELS, tuple(np.maximum.accumulate(probes[::-1])[::-1].tolist()))


def _quantile(values: Ids, weights: npt.NDArray[np.float64], share: float) -> int:
    """Return the least of ``values`` that ``share`` of the weight does not exceed; 0 without any."""
    if len(values) == 0:
        return 0
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return int(values[order][min(np.searchsorted(reached, share * reached[-1]), len(values) - 1)])


def _sample(source: RowIndex, ids: Ids, size: int, rng: np.random.Generator) -> Vectors:
    return source.fetch(rng.choice(ids, min(len(ids), size), replace=False).tolist()).rows


def turned(rows: Vectors, cosines: npt.NDArray[np.float64], rng: np.random.Generator) -> Vectors:
    """Return unit rows that have these cosines with ``rows``, turned as the rows vary among themselves.

    That is what edits do. Passages of 200 characters of the Python documentation with one word changed, embedded
    by all-MiniLM-L6-v2 (337 pairs at cosines from .85 to .995, 77 cells): the original's cell was among the first
    2 for 99 % of them, among the first 3 for the same rows turned to the same cosines like this, among the first
    2 turned evenly in all directions, and among the first 3 turned towards other rows.
    """
    centred = rows - rows.mean(axis=0)
    across = rng.standard_normal((len(rows), len(rows)), dtype=np.float32) @ centred
    across -= (across * rows).sum(axis=1, keepdims=True) * rows
    norms = np.linalg.norm(across, axis=1, keepdims=True)
    fit = norms[:, 0] > 1e-3
    made = rows.copy()
    near, far = cosines[:, None].astype(np.float32), np.sqrt(1 - cosines[:, None] ** 2).astype(np.float32)
    made[fit] = (near * rows + far * across / np.maximum(norms, 1e-3))[fit]
    return made


def _ranks(source: RowIndex, cells: Cells, queries: Vectors) -> list[tuple[int, int]]:
    """Return for each query with a hit how many cells lie nearer to it than the cell of its exact best hit."""
    hits = source.search(queries, 1, LEVELS[0] - 0.01)
    best = {number: found[0][0] for number, found in enumerate(hits) if found}
    there = source.fetch(list(best.values()))
    cell_of = dict(zip(there.ids.tolist(), cells.assign(there.rows).tolist(), strict=True))
    near = queries @ cells.centroids.T
    return [
        (number, int((near[number] > near[number, cell_of[vector_id]]).sum()))
        for number, vector_id in best.items()
        if vector_id in cell_of
    ]


def _usable(centroids: Vectors, rows: Vectors) -> Vectors:
    """Return the centroids with those replaced that have no direction (rows that cancel out)."""
    made = np.ascontiguousarray(centroids, np.float32)
    norms = np.linalg.norm(made, axis=1)
    broken = ~(np.isfinite(norms) & (norms > 0.5))
    made[broken] = rows[: broken.sum()]
    return made
