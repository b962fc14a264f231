"""Prompts, chunks and payloads for the cache suites: a "word" is a token, a text is its words."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from kvboost.index.table import index_bytes
from kvboost.types import (
    Chunk,
    KVLayout,
    Match,
    MatchQuery,
    Namespace,
    NewChunk,
    PutRequest,
    Span,
)

LAYOUT = KVLayout(num_layers=2, num_kv_heads=1, key_dim=4, value_dim=4, dtype="float16")
"""32 bytes a token."""

Tokens = tuple[int, ...]


def namespace(tenant: str = "", layout: KVLayout = LAYOUT, model: str = "m") -> Namespace:
    return Namespace(model=model, tokenizer="t", rope="r", layout=layout, tenant=tenant)


def words(name: str, count: int = 16) -> Tokens:
    """Return ``count`` token ids that belong to ``name`` alone."""
    base = int.from_bytes(name.encode()[-3:], "little") * 64
    return tuple(base + i for i in range(count))


def held_bytes(*counts: int) -> int:
    """Return what chunks of so many tokens take of a cache's budget, without vectors."""
    return sum(count * LAYOUT.token_bytes + index_bytes(count) for count in counts)


def join(chunks: Sequence[Tokens]) -> Tokens:
    return tuple(t for chunk in chunks for t in chunk)


def spans(chunks: Sequence[Tokens]) -> list[Span]:
    ends = np.cumsum([len(c) for c in chunks]).tolist()
    return [Span(end - len(c), end) for end, c in zip(ends, chunks, strict=True)]


def text_of(tokens: Tokens) -> str:
    """Return a text in which every token is a word of its own, so that texts are as alike as their tokens."""
    return " ".join(f"{zlib.crc32(str(t).encode()):x}" for t in tokens)


def payload_of(tokens: Tokens, start: int, salt: str = "", layout: KVLayout = LAYOUT) -> bytes:
    """Return bytes that depend on the tokens, their position and ``salt``."""
    seed = [*salt.encode(), start, *tokens]
    return finite(np.random.default_rng(seed).bytes(len(tokens) * layout.token_bytes))


def finite(random: bytes) -> bytes:
    """Return bytes that are no infinity in any format: one bit of every number's exponent is cleared."""
    return bytes(np.frombuffer(random, np.uint8) & 0xBF)


def offer(
    key: str, chunks: Sequence[Tokens], exact: bool | Sequence[bool] = True, only: Sequence[int] | None = None
) -> PutRequest:
    """Return a put of a sequence made of ``chunks``; ``only`` names the chunks offered, all by default."""
    flags = [exact] * len(chunks) if isinstance(exact, bool) else list(exact)
    return PutRequest(
        key,
        join(chunks),
        tuple(
            NewChunk(span, text_of(tokens), flags[i], payload_of(tokens, span.start))
            for i, (span, tokens) in enumerate(zip(spans(chunks), chunks, strict=True))
            if only is None or i in only
        ),
    )


def ask(key: str, chunks: Sequence[Tokens], threshold: float | None = None, max_nominees: int = 2) -> MatchQuery:
    found = tuple(Chunk(s, text_of(c)) for s, c in zip(spans(chunks), chunks, strict=True))
    return MatchQuery(key, join(chunks), found, threshold, max_nominees)


def shape(matches: Sequence[Match]) -> list[tuple[str, int, int]]:
    """Return tier, start and end of every match."""
    return [(m.tier.value, m.target.start, m.target.end) for m in matches]
