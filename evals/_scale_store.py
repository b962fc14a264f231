"""What a chunk costs in a cache of many: put, look-up by hash, get, eviction, with payloads of a few bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from kvboost.index import LocalCache
from kvboost.index.table import index_bytes
from kvboost.types import Chunk, KVLayout, MatchQuery, Namespace, NewChunk, PutRequest, Span

PROMPT_CHUNKS = 64
_CHUNK_TOKENS = 16
_PROMPTS = 12
_LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, key_dim=1, value_dim=1, dtype="float16")
_NAMESPACE = Namespace(model="scale", tokenizer="t", rope="r", layout=_LAYOUT)
_CHUNK_BYTES = _CHUNK_TOKENS * _LAYOUT.token_bytes


class _Prompts:
    """Prompts of chunks that occur once; the same number gives the same prompt."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def tokens(self, number: int) -> tuple[int, ...]:
        rng = np.random.default_rng([self._seed, number])
        return tuple(rng.integers(0, 50_000, PROMPT_CHUNKS * _CHUNK_TOKENS).tolist())

    def put(self, number: int) -> PutRequest:
        chunks = tuple(NewChunk(span, "", True, b"\0" * _CHUNK_BYTES) for span in _spans())
        return PutRequest(_NAMESPACE.key, self.tokens(number), chunks)

    def query(self, number: int, reordered: bool) -> MatchQuery:
        tokens = self.tokens(number)
        if reordered:
            tokens = tuple(np.array(tokens).reshape(PROMPT_CHUNKS, -1)[::-1].ravel().tolist())
        return MatchQuery(_NAMESPACE.key, tokens, tuple(Chunk(span, "") for span in _spans()), None)


def measure_store(sizes: Sequence[int], seed: int) -> Iterator[dict[str, Any]]:
    """Yield one row a size. Seconds are medians: ``match`` per prompt of 64 chunks, all else per chunk."""
    for size in sizes:
        prompts = _Prompts(seed)
        count = max(1, size // PROMPT_CHUNKS)
        cache = LocalCache(max_bytes=count * PROMPT_CHUNKS * (_CHUNK_BYTES + index_bytes(_CHUNK_TOKENS)))
        try:
            cache.open(_NAMESPACE)
            yield _row(cache, prompts, count)
        finally:
            cache.close()


def _row(cache: LocalCache, prompts: _Prompts, count: int) -> dict[str, Any]:
    start = time.perf_counter()
    for number in range(count):
        cache.put(prompts.put(number))
    fill_s = time.perf_counter() - start
    some = np.unique(np.linspace(0, count - 1, _PROMPTS).astype(int)).tolist()
    known = [cache.match(prompts.query(n, False)) for n in some]
    ids = [[match.donor.chunk_id for match in found.matches] for found in known]
    row = {
        "chunks": cache.stats().namespaces[0].chunks,
        "payload_bytes": _CHUNK_BYTES,
        "fill_s": fill_s,
        "match_prefix_s": _median(lambda q: cache.match(q), [prompts.query(n, False) for n in some]),
        "match_reordered_s": _median(lambda q: cache.match(q), [prompts.query(n, True) for n in some]),
        "get_s": _median(lambda own: list(cache.fetch(_NAMESPACE.key, own)), ids) / PROMPT_CHUNKS,
        "found_share": sum(map(len, ids)) / (len(some) * PROMPT_CHUNKS),
    }
    # The cache is full now: every chunk that comes makes another leave.
    puts = [prompts.put(count + n) for n in range(_PROMPTS)]
    row["put_evicting_s"] = _median(cache.put, puts) / PROMPT_CHUNKS
    row["evicted_chunks"] = cache.stats().namespaces[0].evicted_chunks
    row["evict_s"] = _median(lambda own: cache.evict(_NAMESPACE.key, own), ids) / PROMPT_CHUNKS
    puts = [prompts.put(count + _PROMPTS + n) for n in range(len(some))]
    row["put_s"] = _median(cache.put, puts) / PROMPT_CHUNKS
    return row


def _median(call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    taken = []
    for argument in arguments:
        start = time.perf_counter()
        call(argument)
        taken.append(time.perf_counter() - start)
    return median(taken)


def _spans() -> list[Span]:
    return [Span(start, start + _CHUNK_TOKENS) for start in range(0, PROMPT_CHUNKS * _CHUNK_TOKENS, _CHUNK_TOKENS)]
