"""The cache: does it answer, how does it hand over K/V, and does it give back what was put."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import dataclass

from kvboost.build import build_cache
from kvboost.checksum import checksum
from kvboost.config import CacheConfig, Config, EmbedderConfig
from kvboost.errors import CacheUnavailableError, KVBoostError
from kvboost.protocols import ChunkCache
from kvboost.runtime.cost.meter import LEAST, FetchCost, FetchMeter, path_of
from kvboost.types import Chunk, Handover, KVLayout, MatchQuery, Namespace, NewChunk, PutRequest, Span

from .finding import Examination, Notes

CHUNK_TOKENS, ROUNDS = 64, LEAST + 2
MOST_CHUNKS, SHARE_OF_BUDGET = 4, 0.25
"""So much is put at most: it may push out what others put."""
_NO_MODEL = KVLayout(30, 3, 64, 64, "float32")
"""That of the demo model, where there is none to ask."""


@dataclass(frozen=True, slots=True)
class Handed:
    """How K/V came from the cache, what that costs, and the rate of the whole, seconds of checking included."""

    path: Handover
    cost: FetchCost | None
    bytes_per_s: float
    sound: bool


def examine_cache(config: Config, layout: KVLayout | None) -> tuple[Examination, Handed | None]:
    """Put K/V of ``layout`` into the configured cache, in a namespace of our own, fetch them, and drop them again."""
    notes = Notes("cache")
    address = config.cache.address
    where = f"the cache at {address}" if address else "a cache in this process"
    try:
        with closing(_open(config)) as cache:
            started_s = time.perf_counter()
            stats = cache.stats()
            answer_s = time.perf_counter() - started_s
            handed = try_out(cache, layout or _NO_MODEL, int(stats.max_bytes * SHARE_OF_BUDGET))
    except CacheUnavailableError as error:
        notes.broken(str(error), f"start it: kvboost serve-cache (it was looked for at {address}, cache.address)")
        return notes.done(), None
    except KVBoostError as error:
        notes.broken(f"{where} does not do its work: {error}", "see the log of kvboost serve-cache")
        return notes.done(), None
    _describe(notes, handed, where, answer_s if address else None)
    notes.figures |= {"address": address, "stored_bytes": stats.stored_bytes, "max_bytes": stats.max_bytes}
    return notes.done(), handed


def try_out(cache: ChunkCache, layout: KVLayout, most_bytes: int) -> Handed:
    """Put, match, fetch several times, compare, drop."""
    chunk_bytes = layout.token_bytes * CHUNK_TOKENS
    count = max(1, min(MOST_CHUNKS, most_bytes // chunk_bytes))
    namespace = Namespace("doctor", "doctor", "doctor", layout, tenant=f"doctor-{os.getpid()}-{time.time_ns()}")
    ids = tuple(range(CHUNK_TOKENS * count))
    spans = [Span(i, i + CHUNK_TOKENS) for i in range(0, len(ids), CHUNK_TOKENS)]
    payloads = {span.start: bytes([number + 1]) * chunk_bytes for number, span in enumerate(spans)}
    cache.open(namespace)
    try:
        chunks = tuple(NewChunk(span, f"chunk {span.start}", True, payloads[span.start]) for span in spans)
        cache.put(PutRequest(namespace.key, ids, chunks))
        query = MatchQuery(namespace.key, ids, tuple(Chunk(span, f"chunk {span.start}") for span in spans))
        donors = {match.donor.chunk_id: match.donor.start for match in cache.match(query).matches}
        expected = {chunk_id: checksum(payloads[start]) for chunk_id, start in donors.items()}
        return _fetch(cache, namespace.key, expected)
    finally:
        cache.drop(namespace.key)


def _fetch(cache: ChunkCache, key: str, expected: dict[int, int]) -> Handed:
    meter, best_s, nbytes = FetchMeter(), float("inf"), 0
    sound = bool(expected)
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        chunks = meter.timed(cache.fetch(key, list(expected)))
        got = {chunk.chunk_id: chunk.verified() for chunk in chunks}
        best_s = min(best_s, time.perf_counter() - started_s)
        sound = sound and {chunk_id: checksum(view) for chunk_id, view in got.items()} == expected
        nbytes = sum(view.nbytes for view in got.values())
    path = path_of(cache)
    return Handed(path, meter.cost(path), nbytes / best_s, sound)


def _open(config: Config) -> ChunkCache:
    # An embedder would take seconds to load, and nothing here needs one.
    return build_cache(CacheConfig(address=config.cache.address), config.client, EmbedderConfig("none"))


def _describe(notes: Notes, handed: Handed, where: str, answer_s: float | None) -> None:
    notes.figures |= {
        "handover": handed.path,
        "fetch_bytes_per_s": handed.bytes_per_s,
        "answer_s": answer_s,
        "round_trip_s": handed.cost.round_trip_s if handed.cost else None,
    }
    if not handed.sound:
        notes.broken(f"{where} did not give back the K/V that were put", "restart it; is its byte budget large enough?")
        return
    if answer_s is None:
        notes.ok(
            "no cache service is named; a cache in this process gives back what is put (--cache ADDRESS tries one)"
        )
        return
    rate = f"{handed.path} at {handed.bytes_per_s / 1e9:.2f} GB/s"
    text = f"{where} answers in {answer_s * 1e3:.1f} ms and hands over K/V by {rate}"
    if handed.path is Handover.FRAMES:
        notes.note(text, "on the same host shared memory is quicker: give both the same /dev/shm")
    else:
        notes.ok(text)
