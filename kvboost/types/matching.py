"""Chunks of a prompt, and the donors that a cache proposes for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvboost.errors import InputError
from kvboost.types.spans import Span, Tier


@dataclass(frozen=True, slots=True)
class Chunk:
    """A contiguous run of prompt tokens between two boundaries, and the text it came from."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Segmentation:
    """A prompt cut into chunks and sentences; each list covers ``[0, N)`` exactly once, in order."""

    chunks: tuple[Chunk, ...]
    sentences: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Donor:
    """A cached chunk that can lend K/V.

    Attributes
    ----------
    chunk_id
        Unique for the life of the cache and random across restarts: a stale id never names another chunk.
    token_ids
        The chunk's own tokens: these decide what is reused.
    start
        Position of the first token in the sequence the K/V were computed in (keys carry RoPE of it).
    parent_hash, prefix_hash
        Hash of all tokens of that sequence before the chunk, and up to its end. A donor whose
        ``parent_hash`` equals another's ``prefix_hash`` continues it.
    exact
        Whether the K/V are those of an ordinary prefill of that history.
    """

    chunk_id: int
    token_ids: tuple[int, ...]
    start: int
    parent_hash: bytes
    prefix_hash: bytes
    exact: bool


@dataclass(frozen=True, slots=True)
class Match:
    """A donor for a target span.

    For ``PREFIX`` and ``EXACT`` the tokens of ``donor_span`` (offsets within the donor chunk) equal those of
    ``target``. For ``SIMILAR`` the donor is only a nominee: both spans are whole chunks, may differ in length,
    and the runtime's token diff decides.
    """

    target: Span
    donor: Donor
    donor_span: Span
    tier: Tier
    similarity: float = 1.0


@dataclass(frozen=True, slots=True)
class MatchQuery:
    """One look-up for a whole prompt.

    Attributes
    ----------
    namespace
        :attr:`Namespace.key`.
    token_ids
        All prompt tokens, ``N`` of them, without padding.
    chunks
        The prompt's chunks, in order, covering ``[0, N)``.
    threshold
        Cosine similarity in ``[0, 1]`` that a nominee must reach, or None to skip the similar look-up.
        1.0 nominates identical embeddings only.
    max_nominees
        Similar donors per chunk at most, best first.
    min_shared_tokens
        Chunks that share no run of at least this many tokens with any cached chunk need no nominee, so they are not
        embedded; nor are the less likely ones after several others found none. None: all are embedded.
    """

    namespace: str
    token_ids: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    threshold: float | None = None
    max_nominees: int = 1
    min_shared_tokens: int | None = None

    def __post_init__(self) -> None:
        check_chunks(self.token_ids, [c.span for c in self.chunks])
        if self.threshold is not None and not 0.0 <= self.threshold <= 1.0:
            raise InputError(f"threshold {self.threshold} must lie in [0, 1]: it is a cosine similarity")
        if self.max_nominees < 1:
            raise InputError(f"max_nominees {self.max_nominees} must be at least 1")
        if self.min_shared_tokens is not None and self.min_shared_tokens < 1:
            raise InputError(f"min_shared_tokens {self.min_shared_tokens} must be at least 1, or left out")


@dataclass(frozen=True, slots=True)
class MatchResult:
    """Matches ordered by target start; a miss is simply absent.

    ``PREFIX`` and ``EXACT`` targets are disjoint; ``SIMILAR`` targets overlap none of them, and one chunk may
    have several nominees, best first. ``embedded_chunks`` were compared by vector; ``spared_chunks`` had no
    hash match either, and did not need to be.
    """

    matches: tuple[Match, ...] = ()
    embedded_chunks: int = 0
    spared_chunks: int = 0


def check_chunks(token_ids: Sequence[int], spans: Sequence[Span]) -> None:
    """Raise :class:`InputError` unless ``spans`` cover ``[0, len(token_ids))`` exactly once, in order."""
    at = 0
    for span in spans:
        if span.start != at:
            raise InputError(
                f"chunks must cover the prompt without gap or overlap; one starts at {span.start}, not {at}"
            )
        at = span.end
    if at != len(token_ids):
        raise InputError(f"chunks cover {at} tokens, the prompt has {len(token_ids)}")
