"""The nouns of KVBoost: frozen values that cross between rooms.

Nothing here knows torch, faiss or grpc. Token positions are counted from 0 in the prompt without padding;
spans are half-open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from typing_extensions import Buffer

from kvboost.checksum import checksum
from kvboost.errors import ChecksumError, InputError, TensorError

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Tier(StrEnum):
    """How a token's K/V came about.

    ``PREFIX``: same tokens, same history, lossless. ``EXACT``: same tokens, other history or position.
    ``CONTINUED``: what an earlier request was answered from, for its own continuation or repetition; as lossy as it was
    then. ``SIMILAR``: nominated by embedding, verified by token diff. ``SUBSTITUTE``: the donor's wording stands in.
    ``COMPUTED``: by this request's own forward pass.
    """

    PREFIX = "prefix"
    CONTINUED = "continued"
    EXACT = "exact"
    SIMILAR = "similar"
    SUBSTITUTE = "substitute"
    COMPUTED = "computed"


class Handover(StrEnum):
    """How fetched K/V came here: they were here, were mapped, or were sent. From the quickest to the slowest."""

    IN_PROCESS = "in process"
    SHARED_MEMORY = "shared memory"
    FRAMES = "frames"

    @staticmethod
    def slowest(ways: Iterable[Handover | None]) -> Handover | None:
        """Return the slowest of ``ways``; None if there is none."""
        return max((way for way in ways if way is not None), key=list(Handover).index, default=None)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Half-open range ``[start, end)`` of token positions; never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise InputError(f"span [{self.start}, {self.end}) must have 0 <= start < end")

    def __len__(self) -> int:
        return self.end - self.start

    def shifted(self, by: int) -> Span:
        """Return the span moved by ``by`` positions."""
        return Span(self.start + by, self.end + by)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape and dtype of one model's K/V.

    A chunk of ``T`` tokens is stored as one contiguous buffer, layer by layer: keys ``[kv_heads, T, key_dim]``
    then values ``[kv_heads, T, value_dim]``, so that a reader can begin with layer 0. Keys are stored as the
    model caches them, after RoPE at the donor's position.
    """

    num_layers: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise TensorError(f"layout dtype {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
        if min(self.num_layers, self.num_kv_heads, self.key_dim, self.value_dim) < 1:
            raise TensorError(f"layout {self} must have every size at least 1")

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token over all layers."""
        width = self.key_dim + self.value_dim
        return self.num_layers * self.num_kv_heads * width * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Namespace:
    """What K/V may be shared within; a match never crosses it.

    Every field is part of :attr:`key` under its own name, so that an adapter called like another request's
    tenant cannot collide.
    """

    model: str
    tokenizer: str
    rope: str
    layout: KVLayout
    adapter: str = ""
    tenant: str = ""

    @property
    def key(self) -> str:
        """Hex digest of all fields; the name the cache files this namespace under."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


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


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """Figures of one namespace since the cache started; ``hit_tokens`` counts target tokens by tier.

    ``exact_bytes`` is the part of ``stored_bytes`` that the prefix tier may lend: K/V of an ordinary prefill.
    ``index_bytes`` is about what tables and vectors take beside the K/V; they count in the budget too.
    ``non_finite_chunks`` were offered with K/V that are infinite or not a number, and refused.
    """

    namespace: str
    tenant: str
    model: str
    chunks: int
    stored_bytes: int
    vectors: int
    queries: int
    query_tokens: int
    hit_tokens: dict[str, int]
    evicted_chunks: int
    exact_bytes: int = 0
    index_bytes: int = 0
    non_finite_chunks: int = 0


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cache says of itself."""

    version: str
    max_bytes: int
    embedder: str
    max_variants: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Figures of a whole cache. ``stored_bytes`` of K/V and ``index_bytes`` stay within ``max_bytes`` together."""

    max_bytes: int
    stored_bytes: int
    uptime_s: float
    namespaces: tuple[NamespaceStats, ...] = ()
    index_bytes: int = 0


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
