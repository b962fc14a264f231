"""How fast 256 MiB of K/V come from a cache into a request's slab, by every path."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from evals._unary import UNARY_BYTES, random_bytes, unary_reader
from kvboost.client import CacheClient
from kvboost.errors import KVBoostError
from kvboost.index import LocalCache
from kvboost.protocols import ChunkCache
from kvboost.types import Chunk, KVLayout, MatchQuery, Namespace, NewChunk, PutRequest, Span

CHUNK_BYTES = 4 << 20
_LAYOUT = KVLayout(num_layers=16, num_kv_heads=8, key_dim=64, value_dim=64, dtype="float32")
_CHUNK_TOKENS = 64
_NAMESPACE = Namespace("hand-over", "none", "none", _LAYOUT)
Bytes = npt.NDArray[np.uint8]


class Payloads:
    """``chunks`` chunks of 4 MiB with random content, and the slab that they go into."""

    def __init__(self, chunks: int, seed: int) -> None:
        self.seed = seed
        self.source: Bytes = random_bytes(chunks * CHUNK_BYTES, seed).reshape(chunks, CHUNK_BYTES)
        self.slab: Bytes = np.ones((chunks, CHUNK_BYTES), dtype=np.uint8)
        self.token_ids = tuple(range(3, 3 + chunks * _CHUNK_TOKENS))

    def spans(self) -> list[Span]:
        """Return the chunks' places in the sequence."""
        return [Span(i * _CHUNK_TOKENS, (i + 1) * _CHUNK_TOKENS) for i in range(len(self.source))]

    def put(self, cache: ChunkCache) -> tuple[int, ...]:
        """Store all chunks; return their ids, in order."""
        cache.open(_NAMESPACE)
        made = tuple(
            NewChunk(span, f"chunk {i}", True, payload.data)
            for i, (span, payload) in enumerate(zip(self.spans(), self.source, strict=True))
        )
        cache.put(PutRequest(_NAMESPACE.key, self.token_ids, made))
        asked = tuple(Chunk(span, f"chunk {i}") for i, span in enumerate(self.spans()))
        found = cache.match(MatchQuery(_NAMESPACE.key, (*self.token_ids, 1), (*asked, _last(self.token_ids))))
        ids = tuple(dict.fromkeys(match.donor.chunk_id for match in found.matches))
        if len(ids) != len(made):
            raise KVBoostError(f"the cache kept {len(ids)} of {len(made)} chunks; give it room for all of them")
        return ids

    def check(self, path: str) -> None:
        """Raise unless the slab holds what was put; then spoil it for the next run."""
        if not np.array_equal(self.slab, self.source):
            raise KVBoostError(f"the K/V that came by {path} are not those that were put")
        self.slab[:, ::4096] ^= 255


def _last(token_ids: Sequence[int]) -> Chunk:
    return Chunk(Span(len(token_ids), len(token_ids) + 1), "end")


def measure_handover(mebibytes: int, repetitions: int, seed: int, addresses: tuple[str, str]) -> list[dict[str, Any]]:
    """Return bytes per second by path, medians; all paths take turns, in a new order each round."""
    payloads = Payloads(max(1, (mebibytes << 20) // CHUNK_BYTES), seed)
    rng = random.Random(f"{seed} handover")
    taken: dict[str, list[float]] = defaultdict(list)
    with _paths(payloads, addresses) as paths:
        for number in range(repetitions + 1):
            for name in rng.sample(list(paths), len(paths)):
                start = time.perf_counter()
                paths[name]()
                seconds = time.perf_counter() - start
                payloads.check(name)
                if number > 0:  # the first time connects and maps
                    taken[name].append(seconds)
    total = payloads.source.nbytes
    memcpy = total / median(taken["memcpy"])
    return [
        {
            "path": name,
            "bytes_per_s": total / median(seconds),
            "memcpy_bytes_per_s": memcpy,
            "ratio_to_memcpy": median(a / b for a, b in zip(taken["memcpy"], seconds, strict=True)),
            "fastest_bytes_per_s": total / min(seconds),
            "slowest_bytes_per_s": total / max(seconds),
            "bytes": total,
            "repetitions": len(seconds),
        }
        for name, seconds in ((name, taken[name]) for name in paths)
    ]


@contextmanager
def _paths(payloads: Payloads, addresses: tuple[str, str]) -> Iterator[dict[str, Callable[[], None]]]:
    with ExitStack() as stack:
        local = stack.enter_context(closing(LocalCache(2 * payloads.source.nbytes + (64 << 20))))
        local_ids = payloads.put(local)
        clients = {name: stack.enter_context(closing(client)) for name, client in _clients(addresses).items()}
        first = next(iter(clients.values()))
        ids = payloads.put(first)
        stack.callback(first.drop, _NAMESPACE.key)
        for client in clients.values():
            client.open(_NAMESPACE)
        read_unary = stack.enter_context(unary_reader(payloads.source.nbytes, payloads.seed))
        paths: dict[str, Callable[[], None]] = {
            "memcpy": lambda: _memcpy(payloads),
            "in_process": _fetching(payloads, local, local_ids),
        }
        for name, client in clients.items():
            paths[name] = _fetching(payloads, client, ids)
        flat = payloads.slab.reshape(-1)
        paths["unary 64 MiB"] = lambda: _unary(flat, read_unary)
        yield paths


def _clients(addresses: tuple[str, str]) -> dict[str, CacheClient]:
    """Return a client for each way from another process."""
    unix, tcp = addresses
    return {
        "shared memory": CacheClient(unix, shared_memory=True),
        "unix frames": CacheClient(unix, shared_memory=False),
        "tcp frames": CacheClient(tcp, shared_memory=False),
    }


def _memcpy(payloads: Payloads) -> None:
    for source, target in zip(payloads.source, payloads.slab, strict=True):
        np.copyto(target, source)


def _fetching(payloads: Payloads, cache: ChunkCache, ids: Sequence[int]) -> Callable[[], None]:
    places = {chunk_id: payloads.slab[i] for i, chunk_id in enumerate(ids)}

    def fetch() -> None:
        for chunk in cache.fetch(_NAMESPACE.key, ids):
            np.copyto(places[chunk.chunk_id], np.frombuffer(memoryview(chunk.payload), dtype=np.uint8))

    return fetch


def _unary(flat: Bytes, read: Callable[[int], bytes]) -> None:
    for at in range(0, len(flat), UNARY_BYTES):
        part = flat[at : at + UNARY_BYTES]
        np.copyto(part, np.frombuffer(read(at), dtype=np.uint8))
