"""Identity of token runs: BLAKE3 over little-endian int32 token ids.

Two derivation contexts keep the two uses apart, so that a prefix hash never equals a content hash. Namespaces
have tables of their own and need no part in the hash.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from blake3 import blake3

from kvboost.errors import InputError

_PREFIX_CONTEXT = "kvboost v1 token prefix"
_CONTENT_CONTEXT = "kvboost v1 chunk content"
_TOKEN_BYTES = 4


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Return ``token_ids`` as little-endian int32.

    Raises
    ------
    InputError
        If an id is negative or does not fit into 31 bits.
    """
    try:
        ids = np.frombuffer(array("q", token_ids), dtype=np.int64)
    except (OverflowError, TypeError) as error:
        raise InputError("token_ids must be whole numbers in [0, 2**31)") from error
    if ids.size and (ids.min() < 0 or ids.max() >= 2**31):
        raise InputError("token_ids must lie in [0, 2**31); mask placeholders such as -100 are no tokens")
    return ids.astype("<i4").tobytes()


class SequenceHasher:
    """Hashes of parts of one sequence, whose ids are turned to bytes once.

    Hashes of prefixes are linear in the sequence overall, however many ends are asked: every asked end leaves a
    copy of the hash state (about 2 KB), from which later ends go on. Not safe for use from several threads.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._data = memoryview(token_bytes(token_ids))
        self._ends = [0]
        self._states = [blake3(derive_key_context=_PREFIX_CONTEXT)]
        self._digests = [self._states[0].digest()]

    def content(self, start: int, end: int) -> bytes:
        """Return :func:`content_hash` of the tokens ``[start, end)``."""
        data = self._data[start * _TOKEN_BYTES : end * _TOKEN_BYTES]
        return blake3(data, derive_key_context=_CONTENT_CONTEXT).digest()

    def at(self, end: int) -> bytes:
        """Return the 32-byte hash of the first ``end`` tokens."""
        i = bisect_right(self._ends, end) - 1
        if self._ends[i] == end:
            return self._digests[i]
        state = self._states[i].copy()
        state.update(self._data[self._ends[i] * _TOKEN_BYTES : end * _TOKEN_BYTES])
        self._ends.insert(i + 1, end)
        self._states.insert(i + 1, state)
        self._digests.insert(i + 1, state.digest())
        return self._digests[i + 1]


def prefix_hash(token_ids: Sequence[int]) -> bytes:
    """Return the 32-byte hash of a whole prefix; :class:`SequenceHasher` gives the same for many positions."""
    return SequenceHasher(token_ids).at(len(token_ids))


def content_hash(token_ids: Sequence[int]) -> bytes:
    """Return the 32-byte hash of a chunk's own tokens, whatever stands before them."""
    return SequenceHasher(token_ids).content(0, len(token_ids))
