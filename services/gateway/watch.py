"""What the cache and the runtimes say of themselves, asked every few seconds and remembered for a while."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvboost.client import CacheClient
from kvboost.client.runtime_types import RuntimeInfo, TierAudit
from kvboost.errors import KVBoostError
from kvboost.types import CacheStats, Tier

from .runtimes import Runtimes

INTERVAL_S = 5.0
KEPT = 720
"""Points that are remembered: an hour, at that interval."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What all services said at ``at_s`` (seconds since 1970); None for one that did not answer.

    ``cache`` is also None where no cache is watched.
    """

    at_s: float
    runtimes: Mapping[str, RuntimeInfo | None]
    cache: CacheStats | None


@dataclass(frozen=True, slots=True)
class Point:
    """What happened between two samples, over all runtimes, and what the cache held at the second.

    ``audits`` are those of each runtime by its address, as they stood at the second.
    """

    at_s: float
    requests: int
    tokens_by_tier: Mapping[str, int]
    bytes_by_namespace: Mapping[str, int] = field(default_factory=dict)
    audits: Mapping[str, tuple[TierAudit, ...]] = field(default_factory=dict)


class Watch:
    """Asks, and keeps the newest sample and the history. Safe to use from several threads.

    Parameters
    ----------
    cache
        None where there is no cache service to ask.
    """

    def __init__(self, runtimes: Runtimes, cache: CacheClient | None) -> None:
        self.cache_address = cache.address if cache else ""
        self._runtimes = runtimes
        self._cache = cache
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._sample: Sample | None = None
        self._before: Sample | None = None
        self._history: deque[Point] = deque(maxlen=KEPT)

    def latest(self, max_age_s: float) -> Sample:
        """Return the newest sample; ask anew if it is older than that."""
        with self._asking:  # one asks, the others get its answer
            with self._lock:
                sample = self._sample
            if sample is None or time.time() - sample.at_s > max_age_s:
                sample = Sample(time.time(), self._runtimes.refresh(), self._ask_cache())
                with self._lock:
                    self._sample = sample
            return sample

    def record(self) -> None:
        """Ask, and add a point to the history; to be called in regular intervals."""
        sample = self.latest(0.0)
        with self._lock:
            if self._before is not None:
                self._history.append(_point(self._before, sample))
            self._before = sample

    def history(self) -> tuple[Point, ...]:
        """Return the points that are remembered, the oldest first."""
        with self._lock:
            return tuple(self._history)

    def close(self) -> None:
        """Close the connection to the cache."""
        if self._cache is not None:
            self._cache.close()

    def _ask_cache(self) -> CacheStats | None:
        if self._cache is None:
            return None
        try:
            return self._cache.stats()
        except KVBoostError:
            return None


def _point(before: Sample, after: Sample) -> Point:
    requests = 0
    tokens = dict.fromkeys(map(str, Tier), 0)
    for address, info in after.runtimes.items():
        earlier = before.runtimes.get(address)
        requests += _gained(earlier, info, "requests")
        for tier in tokens:
            tokens[tier] += _gained(earlier, info, f"tokens_{tier}")
    held = {n.namespace: n.stored_bytes for n in after.cache.namespaces} if after.cache else {}
    audits = {address: info.audits for address, info in after.runtimes.items() if info is not None}
    return Point(after.at_s, requests, tokens, held, audits)


def _gained(before: RuntimeInfo | None, after: RuntimeInfo | None, name: str) -> int:
    """Return how far a counter rose; one that fell began anew when its runtime was restarted."""
    if before is None or after is None:
        return 0
    now, then = after.counters.get(name, 0), before.counters.get(name, 0)
    return now - then if now >= then else now
