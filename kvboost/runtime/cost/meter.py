"""What fetching from the cache at hand costs, taken from the requests themselves."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from kvboost.types import ChunkKV, ChunkPart, Handover

Fetched = TypeVar("Fetched", ChunkKV, ChunkPart)

KEPT = 32
DECAY = 0.85
SLOW_BYTE_S = 1.25e-9
LEAST = 3
"""So many values must have been seen before there is an estimate."""


class DecayingMedian:
    """The median of what was seen of late, each value counting 0.85 of the next one.

    Two wild values in a row do not move it far; of a lasting change it takes the side after five values.
    """

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=KEPT)

    def add(self, value: float) -> None:
        """Take down one value."""
        self._values.append(value)

    @property
    def value(self) -> float | None:
        """The median; None before there are three values."""
        if len(self._values) < LEAST:
            return None
        newest = len(self._values) - 1
        weighed = sorted((value, DECAY ** (newest - i)) for i, value in enumerate(self._values))
        half, seen = sum(weight for _, weight in weighed) / 2, 0.0
        for value, weight in weighed:
            seen += weight
            if seen >= half:
                return value
        return weighed[-1][0]


@dataclass(frozen=True, slots=True)
class FetchCost:
    """Seconds that a request waits for K/V: once, and for each byte."""

    round_trip_s: float
    byte_s: float

    def fetch_s(self, nbytes: float) -> float:
        """Return the seconds of fetching ``nbytes``; nothing is fetched for none."""
        return self.round_trip_s + self.byte_s * nbytes if nbytes > 0 else 0.0


class FetchMeter:
    """Times fetches, each way of hand-over on its own. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[Handover, DecayingMedian] = {}
        self._byte: dict[Handover, DecayingMedian] = {}

    def timed(self, chunks: Iterable[Fetched]) -> Iterator[Fetched]:
        """Yield ``chunks``, or parts of them, taking down how long each was waited for.

        What the caller does meanwhile is not counted.
        """
        path = Handover.IN_PROCESS
        first_s, rest_s, first_bytes, rest_bytes = 0.0, 0.0, 0, 0
        waiting = iter(chunks)
        while True:
            started_s = time.perf_counter()
            chunk = next(waiting, None)
            waited_s = time.perf_counter() - started_s
            if chunk is None:
                break
            nbytes = memoryview(chunk.payload).nbytes
            if first_bytes == 0:
                first_s, first_bytes = waited_s, nbytes
                path = chunk.handover
            else:
                rest_s, rest_bytes = rest_s + waited_s, rest_bytes + nbytes
            yield chunk
        if first_bytes:
            self.observe(path, first_s, first_bytes, rest_s, rest_bytes)

    def observe(self, path: Handover, first_s: float, first_bytes: int, rest_s: float, rest_bytes: int) -> None:
        """Take down one fetch: the wait for the first chunk, and for the bytes after it.

        The first chunk's bytes are taken to travel as fast as the others; what is left is the round trip.
        """
        byte_s = rest_s / rest_bytes if rest_bytes else 0.0
        with self._lock:
            self._first.setdefault(path, DecayingMedian()).add(max(first_s - byte_s * first_bytes, 0.0))
            if rest_bytes:
                self._byte.setdefault(path, DecayingMedian()).add(byte_s)

    def cost(self, path: Handover) -> FetchCost | None:
        """Return what fetching costs by ``path``; None before it was used often enough to tell.

        Where only single chunks were fetched, nothing is known of the bytes, and they are taken to be free.
        """
        with self._lock:
            first = self._first[path].value if path in self._first else None
            byte = self._byte[path].value if path in self._byte else None
        return None if first is None else FetchCost(first, byte or 0.0)

    def is_slow(self, path: Handover) -> bool:
        """Return whether bytes come so slowly by ``path`` that computing may as well begin before they are all here.

        On one machine of two cores, a prompt of 4,096 tokens with all of them cached: at .2, .6 and 1.2 GB/s the pass
        that began with the first third of the layers gave its first token after .96, .90 and 1.11 of the time of one
        that waited for all, since more and smaller frames cost time as well.
        """
        known = self.cost(path)
        return known is not None and known.byte_s > SLOW_BYTE_S


def path_of(cache: object) -> Handover:
    """Return how ``cache`` hands over K/V at present; a cache that does not say is taken to be in this process."""
    named = getattr(cache, "handover", None)
    return named if isinstance(named, Handover) else Handover.IN_PROCESS
