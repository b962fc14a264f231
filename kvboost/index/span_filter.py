"""Which chunks share a run of tokens with a cached one? Asked before a chunk is embedded for the similar tier.

Only runs of at least ``min_span`` equal tokens are ever reused in that tier, so a chunk that shares none with
anything cached needs no embedding: a cold prompt then pays for hashing alone. Fingerprints are hashes of every
:data:`GRAM_TOKENS` tokens in a row, which is winnowing (Schleimer, Wilkerson and Aiken, "Winnowing: Local
Algorithms for Document Fingerprinting", 2003) with a window of one. Wider windows keep fewer fingerprints of
shorter runs, and so let more chunks pass for nothing: of unseen chunks of the Debian reference manual (200,000
tokens, four fifths of them cached) 37 % passed with 8 tokens and a window of 1, 51 % with 7 and 2, 60 % with 6 and 3;
of SQuAD paragraphs (41,000 tokens) .4, .9 and 6 %. An embedding costs some 10 ms, a fingerprint 110 bytes and a
chunk's some 2 KB, which is little beside its K/V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GRAM_TOKENS = 8

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)


def gram_hashes(token_ids: Sequence[int]) -> list[int]:
    """Return a 64-bit hash of each :data:`GRAM_TOKENS` tokens in a row, by the position of the first.

    Parameters
    ----------
    token_ids
        ``N`` ids of at least 0; ``N - GRAM_TOKENS + 1`` hashes are returned, none for fewer tokens.
    """
    ids: npt.NDArray[np.uint64] = np.asarray(token_ids, dtype=np.uint64)
    count = len(ids) - GRAM_TOKENS + 1
    if count < 1:
        return []
    hashes = np.zeros(count, np.uint64)
    for offset in range(GRAM_TOKENS):
        hashes = (hashes + ids[offset : offset + count]) * _FACTOR
        hashes ^= hashes >> _SHIFT
    hashes *= _MIX
    found: list[int] = (hashes ^ (hashes >> _SHIFT)).tolist()
    return found


@dataclass(frozen=True, slots=True)
class Shared:
    """What a stretch of tokens may share with cached chunks.

    Attributes
    ----------
    longest
        Most tokens in a row: at least as many as it shares with any one chunk, or 0 if these are fewer than
        :data:`GRAM_TOKENS`.
    share
        Share of its runs of :data:`GRAM_TOKENS` that are known.
    """

    longest: int
    share: float


class SpanFilter:
    """Counts in how many cached chunks each run of :data:`GRAM_TOKENS` tokens stands.

    Never misses a shared run; two runs with one hash only let a chunk pass for nothing. Not safe for use from
    several threads: the namespace's lock guards it.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, token_ids: Sequence[int]) -> None:
        """Count the runs of a chunk."""
        counts = self._counts
        for gram in set(gram_hashes(token_ids)):
            counts[gram] = counts.get(gram, 0) + 1

    def remove(self, token_ids: Sequence[int]) -> None:
        """Take back what :meth:`add` counted for the same tokens."""
        counts = self._counts
        for gram in set(gram_hashes(token_ids)):
            left = counts[gram] - 1
            if left:
                counts[gram] = left
            else:
                del counts[gram]

    def clear(self) -> None:
        """Forget all runs, one by one, so that other threads run in between."""
        while self._counts:
            self._counts.popitem()

    def shared(self, grams: Sequence[int]) -> Shared:
        """Return what the tokens behind ``grams``, neighbouring values of :func:`gram_hashes`, share with the cache."""
        counts = self._counts
        longest = run = known = 0
        for gram in grams:
            if gram in counts:
                run += 1
                known += 1
                longest = max(longest, run)
            else:
                run = 0
        return Shared(longest + GRAM_TOKENS - 1 if longest else 0, known / len(grams) if grams else 0.0)
