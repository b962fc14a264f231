"""Nearest vectors by cosine similarity: exact search over blocks of rows, with ids that survive removal.

Every row is compared. Milliseconds of processor time on one thread of a busy AMD EPYC for 384 dimensions, threshold
.85, 4 nominees (``evals.scale``):

======== ======== ======== ======== ========
rows     1 query  4        64       512
======== ======== ======== ======== ========
10,000   2.0      5.6      9.4      53
50,000   9.5      28       45       236
100,000  18       50       92       493
200,000  33       88       191      1,021
300,000  47       120      261      1,425
======== ======== ======== ======== ========

A store of 300,000 chunks of 40 tokens holds some 276 GB of K/V of a model of 135M parameters in bfloat16 (23 KB a
token), and a larger model's store is larger; a prompt of 64 chunks that no hash found takes such a model seconds to
compute. So an approximate index, which must be trained, tuned, rebuilt and may miss, has nothing to win at sizes that
a store reaches. One was tried (IVF, 4 sqrt(n) cells, probes tuned to a recall of .996): at a million rows it answered
64 queries in 275 ms against 487, and 4 in 19 against 114; that is where to think of one again.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvboost.index.rwlock import ReadWriteLock
from kvboost.index.vectors_rows import Hits, Ids, Piece, check_dim, check_search, checked, unit_rows
from kvboost.index.vectors_scan import Best, scan
from kvboost.protocols import Vectors

BLOCK_ROWS = 4096
_FIRST_ROWS = 64
_ROWS_PER_HOLD = 1024
_ID_BYTES = 32


@dataclass(slots=True)
class _Block:
    rows: Vectors
    ids: Ids

    @classmethod
    def of(cls, size: int, dim: int) -> _Block:
        """Return ``size`` rows of zeros, in pages of their own where it is a whole block.

        malloc would keep the pages when the block is freed: 300 MB of blocks gave 9 MB back to the system.
        """
        if size < BLOCK_ROWS:
            return cls(np.zeros((size, dim), np.float32), np.zeros(size, np.int64))
        pages = mmap.mmap(-1, size * dim * 4)
        return cls(np.frombuffer(pages, np.float32).reshape(size, dim), np.zeros(size, np.int64))

    def resized(self, size: int) -> _Block:
        made = _Block.of(size, self.rows.shape[1])
        kept = min(size, len(self.ids))
        made.rows[:kept], made.ids[:kept] = self.rows[:kept], self.ids[:kept]
        return made


class VectorIndex:
    """Vectors of one namespace and one embedder. Safe to use from several threads.

    Rows lie without gaps in blocks of ``BLOCK_ROWS``: growing adds a block and copies nothing, a removal moves
    the last row into the gap, and a block that falls empty is freed.

    A search holds the lock for one block at a time (some 2 ms for 64 queries of 384 dimensions), so a writer
    waits for no more than that. It goes from the last block to the first: rows are moved only towards the first,
    so one that is moved meanwhile is seen twice at worst, and never missed.
    """

    def __init__(self, dim: int) -> None:
        check_dim(dim)
        self._dim = dim
        self._blocks = [_Block.of(_FIRST_ROWS, dim)]
        self._slots: dict[int, int] = {}
        self._most = 0
        self._lock = ReadWriteLock()

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._dim

    @property
    def nbytes(self) -> int:
        """Bytes held for rows, ids and tables, about."""
        with self._lock.read():
            blocks = sum(block.rows.nbytes + block.ids.nbytes for block in self._blocks)
            return blocks + sys.getsizeof(self._slots) + 2 * _ID_BYTES * len(self._slots)

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Store ``[len(ids), dim]`` rows under non-negative ids; a known id is overwritten.

        Raises
        ------
        TensorError
            If a row is of another width, not finite, or zero. Nothing is stored then.
        """
        rows = checked(ids, vectors, self._dim)
        self.insert(Piece(np.asarray(ids, np.int64), rows))

    def insert(self, piece: Piece) -> None:
        """Add unit rows as they are, such as another index gave them."""
        for start in range(0, len(piece.ids), _ROWS_PER_HOLD):
            part = slice(start, start + _ROWS_PER_HOLD)
            with self._lock.write():
                for vector_id, row in zip(piece.ids[part].tolist(), piece.rows[part], strict=True):
                    self._add_one(vector_id, row)

    def remove(self, ids: Sequence[int]) -> int:
        """Remove rows; return how many were there."""
        removed = 0
        for start in range(0, len(ids), _ROWS_PER_HOLD):
            with self._lock.write():
                removed += sum(self._remove_one(int(i)) for i in ids[start : start + _ROWS_PER_HOLD])
                self._shrink()
        return removed

    def search(self, queries: Vectors, k: int, threshold: float) -> list[Hits]:
        """Return for each ``[n, dim]`` query at most ``k`` pairs of id and cosine, best first.

        Of equal cosines the lower id comes first. Only pairs with ``cosine >= threshold`` (up to
        :data:`~kvboost.index.vectors_rows.COSINE_ROUNDING`) are returned; cosines are clipped to ``[-1, 1]``. What is
        found depends neither on what else is asked nor on how the machine multiplies. Rows that come, leave or change
        while the search runs may or may not be among the hits; all others are judged as if it had run alone.
        """
        check_search(k)
        wanted = unit_rows(queries, self._dim)
        best = Best(len(wanted), k)
        for number in reversed(range(len(self._blocks))):
            with self._lock.read():
                block, used = self._block(number)
                numbers, found, cosines = scan(wanted, block.rows[:used], k, threshold)
                best.add(numbers, block.ids[found], cosines)
        return best.hits()

    def pieces(self) -> Iterator[Piece]:
        """Yield every row. A row that stays untouched meanwhile is yielded at least once."""
        for number in reversed(range(len(self._blocks))):
            with self._lock.read():
                block, used = self._block(number)
                piece = Piece(block.ids[:used].copy(), block.rows[:used].copy())
            yield piece

    def _block(self, number: int) -> tuple[_Block, int]:
        """Return a block and how many of its rows are used; none where it was freed meanwhile."""
        if number >= len(self._blocks):
            return self._blocks[0], 0
        return self._blocks[number], max(0, min(BLOCK_ROWS, len(self._slots) - number * BLOCK_ROWS))

    def _add_one(self, vector_id: int, row: Vectors) -> None:
        slot = self._slots.get(vector_id)
        if slot is None:
            slot = len(self._slots)
            self._make_room(slot)
            self._slots[vector_id] = slot
            self._most = max(self._most, slot + 1)
        block = self._blocks[slot // BLOCK_ROWS]
        block.ids[slot % BLOCK_ROWS] = vector_id
        block.rows[slot % BLOCK_ROWS] = row

    def _make_room(self, slot: int) -> None:
        if slot // BLOCK_ROWS == len(self._blocks):
            self._blocks.append(_Block.of(BLOCK_ROWS, self._dim))
        elif len(self._blocks) == 1 and slot == (size := len(self._blocks[0].ids)):
            self._blocks[0] = self._blocks[0].resized(min(BLOCK_ROWS, 2 * size))

    def _remove_one(self, vector_id: int) -> bool:
        slot = self._slots.pop(vector_id, None)
        if slot is None:
            return False
        last = len(self._slots)
        if slot != last:
            source, target = self._blocks[last // BLOCK_ROWS], self._blocks[slot // BLOCK_ROWS]
            target.rows[slot % BLOCK_ROWS] = source.rows[last % BLOCK_ROWS]
            target.ids[slot % BLOCK_ROWS] = source.ids[last % BLOCK_ROWS]
            self._slots[int(target.ids[slot % BLOCK_ROWS])] = slot
        return True

    def _shrink(self) -> None:
        """Free what is not needed; half a block stays spare, so that a size that wavers copies nothing."""
        used = len(self._slots)
        while len(self._blocks) > 1 and used <= (len(self._blocks) - 1) * BLOCK_ROWS - BLOCK_ROWS // 2:
            self._blocks.pop()
        first = len(self._blocks[0].ids)
        if len(self._blocks) == 1 and first > _FIRST_ROWS and used <= first // 4:
            self._blocks[0] = self._blocks[0].resized(max(_FIRST_ROWS, 2 * used))
        if used < self._most // 4:
            # A dictionary keeps the size of its best days until it is copied.
            self._slots = dict(self._slots)
            self._most = used
