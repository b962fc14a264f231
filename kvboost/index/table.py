"""The tables of one namespace: every way to find a chunk, kept consistent under add and remove."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvboost.index.span_filter import SpanFilter
from kvboost.index.vectors import VectorIndex
from kvboost.types import Donor, Namespace, NamespaceStats, Tier

TokenIds = tuple[int, ...]
History = tuple[bytes, bytes]

SHORT_TOKENS = 16
MANY_VARIANTS = 64

# What the tables of a chunk take, measured with tracemalloc over chunks of 4 to 128 tokens (tests/index/test_table.py
# measures it again): ids, hashes, dictionaries, and some 90 bytes for the fingerprint that begins at each token.
_CHUNK_BYTES = 1500
_BYTES_OF_TOKEN = 120
_VECTOR_BYTES = 130


def index_bytes(num_tokens: int, vector_dim: int = 0) -> int:
    """Return about how many bytes a chunk takes beside its K/V; with a float32 vector unless ``vector_dim`` is 0."""
    vector = 4 * vector_dim + _VECTOR_BYTES if vector_dim else 0
    return _CHUNK_BYTES + _BYTES_OF_TOKEN * num_tokens + vector


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored chunk: the donor, the hash of its own tokens, the size of its K/V and of all else that it takes."""

    donor: Donor
    content: bytes
    nbytes: int
    index_bytes: int = 0

    @property
    def history(self) -> History:
        """Start and end of the chunk as prefix hashes: its identity."""
        return self.donor.parent_hash, self.donor.prefix_hash


@dataclass(slots=True)
class _Content:
    """All stored chunks with the same tokens, oldest first; they share one vector."""

    vector_id: int
    chunk_ids: list[int] = field(default_factory=list)


class Verdict(StrEnum):
    """What the table makes of an offered chunk."""

    STORE = "store"
    REPLACE = "replace"
    DUPLICATE = "duplicate"
    OVER_VARIANTS = "over_variants"


class NamespaceTable:
    """Chunks of one namespace by id, by parent hash, by content hash and by vector id.

    Not safe for use from several threads: the namespace's lock guards it (``vectors`` has a lock of its own).
    """

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.vectors: VectorIndex | None = None
        self.spans = SpanFilter()
        self.queries = 0
        self.query_tokens = 0
        self.hit_tokens = {tier.value: 0 for tier in (Tier.PREFIX, Tier.EXACT, Tier.SIMILAR)}
        self.evicted_chunks = 0
        self.non_finite_chunks = 0
        self._bytes = self._exact_bytes = self._index_bytes = 0
        self._entries: dict[int, Entry] = {}
        self._by_history: dict[History, Entry] = {}
        self._children: dict[bytes, list[Donor]] = {}
        self._contents: dict[bytes, _Content] = {}
        self._by_vector: dict[int, bytes] = {}
        self._next_vector = 0
        self._longest = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, chunk_id: int) -> bool:
        return chunk_id in self._entries

    @property
    def donors(self) -> list[Donor]:
        """All chunks, oldest first."""
        return [entry.donor for entry in self._entries.values()]

    def judge(
        self,
        history: History,
        content: bytes,
        num_tokens: int,
        exact: bool,
        max_variants: int,
        own: Callable[[], Container[int]] = tuple,
    ) -> tuple[Verdict, int | None]:
        """Decide whether a chunk is to be stored; for ``REPLACE`` also name the chunk that must go.

        A chunk with the same tokens and history is there already, or an exact one replaces an approximate one.
        A new history of known content is kept only if computed exactly and while there are fewer than
        ``max_variants``: a document met in a thousand orders is stored once or twice. Chunks too short to be a
        document (a chat's turn markers stand in every history) keep the newest ``MANY_VARIANTS`` histories, so
        that no chat has a gap at every turn; so does everything where ``max_variants`` is that large. The oldest goes
        that is not in ``own``, the sequence that the chunk belongs to.
        """
        known = self._by_history.get(history)
        if known is not None:
            if exact and not known.donor.exact:
                return Verdict.REPLACE, known.donor.chunk_id
            return Verdict.DUPLICATE, None
        variants = self._contents.get(content)
        if variants is None:
            return Verdict.STORE, None
        if not exact:
            return Verdict.OVER_VARIANTS, None
        if num_tokens < SHORT_TOKENS:
            max_variants = max(max_variants, MANY_VARIANTS)
        if len(variants.chunk_ids) < max_variants:
            return Verdict.STORE, None
        if max_variants < MANY_VARIANTS:
            return Verdict.OVER_VARIANTS, None
        kept = own()
        oldest = next((each for each in variants.chunk_ids if each not in kept), None)
        return (Verdict.STORE, None) if oldest is None else (Verdict.REPLACE, oldest)

    def add(self, entry: Entry) -> int | None:
        """File a chunk whose history is new; return the id its vector is wanted under, None if there is one."""
        donor = entry.donor
        self._entries[donor.chunk_id] = entry
        self._by_history[entry.history] = entry
        self._weigh(entry, 1)
        self._longest = max(self._longest, len(donor.token_ids))
        if donor.exact:
            siblings = self._children.setdefault(donor.parent_hash, [])
            siblings.insert(bisect_left(siblings, donor.token_ids, key=_tokens), donor)
        content = self._contents.get(entry.content)
        if content is not None:
            content.chunk_ids.append(donor.chunk_id)
            return None
        vector_id, self._next_vector = self._next_vector, self._next_vector + 1
        self._contents[entry.content] = _Content(vector_id, [donor.chunk_id])
        self._by_vector[vector_id] = entry.content
        self.spans.add(donor.token_ids)
        return vector_id

    def remove(self, chunk_id: int) -> Entry:
        """Remove a chunk from every table, and the vector with the last chunk of its content; return what it was."""
        entry = self._entries.pop(chunk_id)
        donor = entry.donor
        del self._by_history[entry.history]
        self._weigh(entry, -1)
        if donor.exact:
            siblings = self._children[donor.parent_hash]
            del siblings[bisect_left(siblings, donor.token_ids, key=_tokens)]
            if not siblings:
                del self._children[donor.parent_hash]
        content = self._contents[entry.content]
        content.chunk_ids.remove(chunk_id)
        if not content.chunk_ids:
            del self._contents[entry.content]
            del self._by_vector[content.vector_id]
            self.spans.remove(donor.token_ids)
            if self.vectors is not None:
                self.vectors.remove([content.vector_id])
        return entry

    def continued_by(self, chunk_id: int) -> Iterator[int]:
        """Yield the ids of the exact chunks that go on where a chunk ends, with its history."""
        for donor in self._children.get(self._entries[chunk_id].donor.prefix_hash, ()):
            yield donor.chunk_id

    def children(self, parent: bytes, token_ids: TokenIds, start: int) -> list[tuple[Donor, int]]:
        """Return exact donors with history ``parent`` that share ``n > 0`` first tokens with ``token_ids[start:]``.

        All donors that match with all their tokens are among them, and one with the largest ``n``. Siblings are
        sorted by tokens, so both are found by bisection: the longest common prefix is beside the place where
        the wanted tokens would stand, and what matches wholly lies before it, each one a prefix of the last.
        """
        siblings = self._children.get(parent)
        if siblings is None:
            return []
        window = token_ids[start : start + self._longest]
        at = bisect_right(siblings, window, key=_tokens)
        found = []
        if at < len(siblings) and (n := common_prefix(siblings[at].token_ids, window)):
            found.append((siblings[at], n))
        while window and at > 0:
            donor = siblings[at - 1]
            n = common_prefix(donor.token_ids, window)
            if n == 0:
                break
            found.append((donor, n))
            window = window[: n if n < len(donor.token_ids) else n - 1]
            at = bisect_right(siblings, window, hi=at, key=_tokens)
        return found

    def same_content(self, content: bytes, token_ids: TokenIds) -> list[Donor]:
        """Return the donors with this content hash whose tokens really are ``token_ids``, oldest first."""
        return [d for d in self._donors(self._contents.get(content)) if d.token_ids == token_ids]

    def by_vector(self, vector_id: int) -> list[Donor]:
        """Return the donors behind a vector, oldest first; none if they have left."""
        content = self._by_vector.get(vector_id)
        return self._donors(self._contents[content]) if content is not None else []

    def wants_vector(self, vector_id: int) -> bool:
        """Return whether a chunk with this vector is still stored."""
        return vector_id in self._by_vector

    def dissolve(self) -> int:
        """Forget everything, piece by piece, so that other threads run in between; return how many chunks there were.

        Nobody else may use the table any more.
        """
        self.vectors = None
        count = len(self._entries)
        self.spans.clear()
        for each in (self._children, self._by_vector, self._contents, self._by_history, self._entries):
            while each:
                each.popitem()
        self._bytes = self._exact_bytes = self._index_bytes = 0
        return count

    def stats(self) -> NamespaceStats:
        """Return this namespace's figures, which are kept up with every change."""
        return NamespaceStats(
            namespace=self.namespace.key,
            tenant=self.namespace.tenant,
            model=self.namespace.model,
            chunks=len(self._entries),
            stored_bytes=self._bytes,
            vectors=len(self.vectors) if self.vectors is not None else 0,
            queries=self.queries,
            query_tokens=self.query_tokens,
            hit_tokens=dict(self.hit_tokens),
            evicted_chunks=self.evicted_chunks,
            exact_bytes=self._exact_bytes,
            index_bytes=self._index_bytes,
            non_finite_chunks=self.non_finite_chunks,
        )

    def _weigh(self, entry: Entry, sign: int) -> None:
        self._bytes += sign * entry.nbytes
        self._exact_bytes += sign * entry.nbytes * entry.donor.exact
        self._index_bytes += sign * entry.index_bytes

    def _donors(self, content: _Content | None) -> list[Donor]:
        return [self._entries[i].donor for i in content.chunk_ids] if content is not None else []


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many first tokens are equal."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


def _tokens(donor: Donor) -> TokenIds:
    return donor.token_ids
