"""The interfaces that have more than one implementation.

Each has one contract suite under ``tests/contracts`` that runs over every implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from kvboost.types import (
    CacheInfo,
    CacheStats,
    ChunkKV,
    ChunkPart,
    ChunkVerdict,
    MatchQuery,
    MatchResult,
    Namespace,
    PutReceipt,
    PutRequest,
    Segmentation,
)

Vectors = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into unit vectors whose inner product is their cosine similarity."""

    @property
    def name(self) -> str:
        """Name and version of the model; vectors of two names are never compared."""
        ...

    @property
    def dim(self) -> int:
        """Length of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``[len(texts), dim]`` float32 rows of unit length."""
        ...


class PromptSegmenter(Protocol):
    """Cuts a tokenised prompt into chunks."""

    def segment(self, token_ids: Sequence[int]) -> Segmentation:
        """Return chunks and sentences that cover ``token_ids`` exactly once."""
        ...


class ChunkCache(Protocol):
    """A cache of chunk K/V, in this process or behind gRPC. Safe to use from several threads.

    Every method may raise :class:`~kvboost.errors.CacheUnavailableError`; a miss is never an error.
    """

    def open(self, namespace: Namespace) -> CacheInfo:
        """Make ``namespace`` known. Repeating it is harmless.

        Raises
        ------
        LayoutMismatchError
            If the key is known with another layout.
        """
        ...

    def match(self, query: MatchQuery) -> MatchResult:
        """Find donors for a prompt's chunks.

        Raises
        ------
        UnknownNamespaceError
            If the namespace was not opened, or was dropped.
        """
        ...

    def fetch(self, namespace: str, chunk_ids: Sequence[int]) -> Iterator[ChunkKV]:
        """Yield the K/V of the chunks that are still there, in the order asked; others are left out.

        Raises
        ------
        UnknownNamespaceError, TruncatedStreamError
        """
        ...

    def put(self, request: PutRequest) -> PutReceipt:
        """Offer chunks; the cache decides which it keeps.

        Raises
        ------
        UnknownNamespaceError
        TensorError
            If a payload's byte count does not fit its span and the namespace's layout.
        """
        ...

    def evict(self, namespace: str, chunk_ids: Sequence[int]) -> int:
        """Remove chunks; return how many were there."""
        ...

    def drop(self, namespace: str) -> int:
        """Forget the whole namespace; return how many chunks it held (0 if unknown)."""
        ...

    def stats(self) -> CacheStats:
        """Return figures of the cache and its namespaces."""
        ...

    def close(self) -> None:
        """Release what this object holds (a connection, the memory of an in-process cache)."""
        ...


@runtime_checkable
class PartSource(Protocol):
    """A cache that can send the first layers of all chunks before the last of any."""

    def fetch_parts(self, namespace: str, chunk_ids: Sequence[int], parts: int) -> Iterator[ChunkPart]:
        """Yield the first of ``parts`` equal parts of every chunk that is still there, then every second, and so on.

        Raises
        ------
        ChecksumError
            Instead of the last part of a chunk: what was yielded of it before is then not to be used either.
        UnknownNamespaceError, TruncatedStreamError, DataLossError
        """
        ...


@runtime_checkable
class PutJudge(Protocol):
    """A cache that can say what it would make of a put before it has the K/V."""

    def judge(self, request: PutRequest) -> tuple[ChunkVerdict, ...]:
        """Return a verdict on each chunk; payloads and texts are not looked at. Nothing is stored or counted.

        Raises
        ------
        UnknownNamespaceError
        InputError
            If a span or a token id is out of range.
        """
        ...
