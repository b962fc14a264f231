"""K/V on their way into a cache and out of it."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import Buffer

from kvboost.checksum import checksum
from kvboost.errors import ChecksumError
from kvboost.types.spans import Handover, Span


@dataclass(frozen=True, slots=True)
class ChunkKV:
    """The K/V of one cached chunk, in :class:`KVLayout` order. ``payload`` is read-only and shared."""

    chunk_id: int
    payload: Buffer
    checksum: int
    handover: Handover = Handover.IN_PROCESS

    def verified(self) -> memoryview:
        """Return the payload as bytes after checking it against the checksum.

        Raises
        ------
        ChecksumError
            If the bytes are not those that were put.
        """
        view = memoryview(self.payload).cast("B")
        if checksum(view) != self.checksum:
            raise ChecksumError(
                f"the K/V of chunk {self.chunk_id} do not match their checksum; evict the chunk", self.chunk_id
            )
        return view


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """Part number ``part`` of a chunk's K/V, counted from 0; ``payload`` is read-only."""

    chunk_id: int
    part: int
    payload: Buffer
    handover: Handover = Handover.FRAMES


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A chunk offered to the cache; ``exact`` as in :class:`Donor`, ``payload`` as in :class:`ChunkKV`."""

    span: Span
    text: str
    exact: bool
    payload: Buffer


@dataclass(frozen=True, slots=True)
class PutRequest:
    """Chunks of one sequence offered to the cache.

    Attributes
    ----------
    token_ids
        The whole sequence from position 0.
    prefix_only
        Whether whoever offers them reads chunks under their own history alone. The same content under another history
        is no use to it, so many more histories are kept than the cache's ``max_variants``.
    """

    namespace: str
    token_ids: tuple[int, ...]
    chunks: tuple[NewChunk, ...]
    prefix_only: bool = False


@dataclass(frozen=True, slots=True)
class ChunkVerdict:
    """What a cache would make of an offered chunk, as things stand.

    Attributes
    ----------
    wanted
        It would be stored.
    duplicate
        Otherwise: same tokens and history are there already; if not that, there are enough histories of its content.
    identity
        Equal for chunks of the same namespace, tokens, history and exactness, and for no others.
    """

    wanted: bool
    duplicate: bool
    identity: bytes


@dataclass(frozen=True, slots=True)
class PutReceipt:
    """What became of the offered chunks, as counts.

    ``duplicate``: same tokens and history are already there. ``over_variants``: the content is stored under
    enough histories already, or computed over a repaired history while a stored one exists. ``too_large``:
    larger than the whole budget, or than what is left of it beside the chunks before it in its sequence.
    """

    stored: int = 0
    duplicate: int = 0
    over_variants: int = 0
    too_large: int = 0
