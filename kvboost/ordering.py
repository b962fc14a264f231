"""Cache-aware order of documents: the one of which the longest lossless prefix is cached.

Cached sequences form a tree: each chunk follows one history. Documents whose order is free can be put so that the
prompt walks down that tree as far as it reaches. Documents that do not stand on the path keep their order, which is
usually that of relevance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvboost.documents import DocumentOrder, marked
from kvboost.errors import InputError
from kvboost.protocols import ChunkCache
from kvboost.types import Chunk, MatchQuery, Span, Tier

MAX_LOOK_UPS = 64
MIN_GAIN_TOKENS = 16
"""A document is not moved for less: documents often begin alike, and a shorter stretch saves nothing."""


def document_token_ids(
    tokenizer: Any, text: str, documents: Sequence[str], add_special_tokens: bool
) -> tuple[list[int], list[list[int]]]:
    """Return the token ids before the documents of a prompt, and those of each with what separates it from the next.

    The prompt is tokenised in one piece, in the order given; that its pieces may then change places is what the
    separators are for.

    Parameters
    ----------
    tokenizer
        The model's fast tokenizer.
    text
        The prompt: holds ``marked(documents)``, and text behind it, by which the line ends before are tokenised.
    add_special_tokens
        Whether the tokenizer adds them; a chat template writes its own.

    Raises
    ------
    InputError
        If the documents do not stand in the text as :func:`~kvboost.documents.marked` puts them.
    """
    block = marked(documents)
    at = text.rfind(block)
    if at == -1 or at + len(block) == len(text):
        raise InputError("the prompt must hold marked(documents), with text behind it; a chat template may change them")
    at += len(marked([]))
    ends = [at]
    for document in documents:
        at += len(document.strip()) + len(marked([])) + len("\n\n")
        ends.append(at)
    encoded = tokenizer(text, add_special_tokens=add_special_tokens)
    cuts = [int(encoded.char_to_token(end)) for end in ends]
    ids = list(encoded["input_ids"])
    return ids[: cuts[0]], [ids[a:b] for a, b in pairwise(cuts)]


def order_documents(
    cache: ChunkCache,
    namespace: str,
    before: Sequence[int],
    documents: Sequence[Sequence[int]],
    max_look_ups: int = MAX_LOOK_UPS,
) -> DocumentOrder:
    """Return the order of which the longest prefix is cached, or the order given where none is better.

    Every document after which the cached prefix goes on is tried, first ones first, until the tree is walked or the
    look-ups are spent. They count as look-ups in the cache's figures.

    Parameters
    ----------
    cache
        In this process or behind gRPC.
    namespace
        :attr:`~kvboost.types.Namespace.key`.
    before
        Token ids of the prompt before the documents.
    documents
        Token ids of each document with its separators, as they stand in the prompt.
    max_look_ups
        At most so many orders are looked up to find the best, each with one match.

    Raises
    ------
    InputError
        If a document has no tokens, or ``max_look_ups`` is less than 1.
    UnknownNamespaceError, CacheUnavailableError
        As :meth:`~kvboost.protocols.ChunkCache.match`.
    """
    if max_look_ups < 1:
        raise InputError(f"max_look_ups {max_look_ups} must be at least 1: the order given is looked up in any case")
    for i, document in enumerate(documents):
        if len(document) == 0:
            raise InputError(f"documents[{i}] has no tokens; leave it out")
    search = _Search(cache, namespace, tuple(before), tuple(map(tuple, documents)), max_look_ups)
    given = tuple(range(len(documents)))
    reached = search.reach(given)
    best = max(search.paths(()), key=lambda path: path.tokens, default=_Path(given, reached))  # the first of equals
    if best.tokens < reached + MIN_GAIN_TOKENS:
        return DocumentOrder(given, reached, reached)
    order = best.indices + tuple(i for i in given if i not in best.indices)
    # Where the look-ups were spent, the path may go on among the documents that follow.
    return DocumentOrder(order, search.reach(order), reached)


@dataclass(frozen=True, slots=True)
class _Path:
    """Documents at the front, and the tokens that are cached of a prompt that begins with them."""

    indices: tuple[int, ...]
    tokens: int


@dataclass(slots=True)
class _Search:
    cache: ChunkCache
    namespace: str
    before: tuple[int, ...]
    documents: tuple[tuple[int, ...], ...]
    look_ups_left: int

    def paths(self, front: tuple[int, ...]) -> Iterator[_Path]:
        """Yield every longer front, depth first, as long as all before its last document is cached."""
        end = self._length(front)
        for i in range(len(self.documents)):
            if i in front:
                continue
            if self.look_ups_left == 0:
                return
            longer = (*front, i)
            tokens = self.reach(longer)
            if tokens < end:
                return  # not even what stands before the documents is cached
            if tokens < min(end + MIN_GAIN_TOKENS, self._length(longer)):
                continue
            yield _Path(longer, tokens)
            if tokens == self._length(longer):
                yield from self.paths(longer)

    def reach(self, front: tuple[int, ...]) -> int:
        """Return how many tokens of the prompt up to the end of ``front`` are cached without a gap."""
        token_ids = self.before + tuple(token for i in front for token in self.documents[i])
        if not token_ids:
            return 0
        self.look_ups_left -= 1
        # The walk over prefixes goes by tokens, not by the query's chunks: one is enough.
        whole = Chunk(Span(0, len(token_ids)), "")
        found = self.cache.match(MatchQuery(self.namespace, token_ids, (whole,)))
        at = 0
        for match in found.matches:
            if match.tier is not Tier.PREFIX or match.target.start != at:
                break
            at = match.target.end
        return at

    def _length(self, front: tuple[int, ...]) -> int:
        return len(self.before) + sum(len(self.documents[i]) for i in front)
