"""A cache that stops answering is left alone until it answers again.

A cache process that hangs holds its connection, so every call to it lasts until its deadline, and every request would
lose that time before it computes its prompt after all. Behind a circuit breaker (M. Nygard, "Release It!") the first
calls that fail so open the circuit: from then on calls fail at once, and one thread asks in the background, more and
more rarely, whether the cache is back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from kvboost.errors import CacheUnavailableError
from kvboost.protocols import ChunkCache, PartSource
from kvboost.types import (
    CacheInfo,
    CacheStats,
    ChunkKV,
    ChunkPart,
    MatchQuery,
    MatchResult,
    Namespace,
    PutReceipt,
    PutRequest,
)

LOST_S = 0.25
"""Failures in a row open the circuit once they have cost so much together; a refused connection costs next to nothing,
and a server that is started again is then found at once."""
FIRST_PROBE_S = 0.1
MOST_PROBE_S = 10.0
"""Between two questions whether the cache is back: twice as long each time, from the first to the most."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


def guarded(cache: ChunkCache, count: Callable[[str], None] = lambda name: None, owns: bool = True) -> CircuitBreaker:
    """Return ``cache`` behind a circuit breaker, which is a :class:`~kvboost.protocols.PartSource` where it is one.

    Parameters
    ----------
    count
        Told ``cache_circuit_opened`` and, for each call that was spared, ``cache_calls_spared``.
    owns
        Whether ``cache`` is closed with the breaker.
    """
    return (_PartBreaker if isinstance(cache, PartSource) else CircuitBreaker)(cache, count, owns)


def fault_of(cache: object) -> str:
    """Return why ``cache`` is left alone; empty for one that is not, or has no breaker."""
    return str(getattr(cache, "fault", ""))


class CircuitBreaker:
    """Passes every call on to ``inner`` while that answers. Safe to use from several threads.

    Closed: calls go through. Open: calls raise :class:`~kvboost.errors.CacheUnavailableError` at once, while one
    thread probes. A probe that is answered closes the circuit; what failed before may fail again, and until the same
    kind of call has come through the pauses between probes go on growing.
    """

    def __init__(self, inner: ChunkCache, count: Callable[[str], None], owns: bool) -> None:
        self._inner = inner
        self._count = count
        self._owns = owns
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._namespaces: dict[str, Namespace] = {}
        self._fault = ""
        self._failing = ""
        self._lost_s = 0.0
        self._pause_s = FIRST_PROBE_S

    @property
    def fault(self) -> str:
        """Why the cache is left alone; empty while it is not."""
        return self._fault

    def open(self, namespace: Namespace) -> CacheInfo:
        """Make ``namespace`` known."""
        info = self._through("open", lambda: self._inner.open(namespace))
        with self._lock:
            self._namespaces[namespace.key] = namespace
        return info

    def match(self, query: MatchQuery) -> MatchResult:
        """Find donors for a prompt's chunks."""
        return self._through("match", lambda: self._inner.match(query))

    def fetch(self, namespace: str, chunk_ids: Sequence[int]) -> Iterator[ChunkKV]:
        """Yield the K/V of the chunks that are still there, in the order asked."""
        return self._stream("fetch", lambda: self._inner.fetch(namespace, chunk_ids))

    def put(self, request: PutRequest) -> PutReceipt:
        """Offer chunks."""
        return self._through("put", lambda: self._inner.put(request))

    def evict(self, namespace: str, chunk_ids: Sequence[int]) -> int:
        """Remove chunks; return how many were there."""
        return self._through("evict", lambda: self._inner.evict(namespace, chunk_ids))

    def drop(self, namespace: str) -> int:
        """Forget the whole namespace."""
        with self._lock:
            self._namespaces.pop(namespace, None)
        return self._through("drop", lambda: self._inner.drop(namespace))

    def stats(self) -> CacheStats:
        """Return figures of the cache."""
        return self._through("stats", self._inner.stats)

    def close(self) -> None:
        """Probe no more, and close the cache itself if it is the breaker's own."""
        self._ending.set()
        if self._owns:
            self._inner.close()

    def _through(self, name: str, call: Callable[[], T]) -> T:
        self._check()
        started_s = time.monotonic()
        try:
            result = call()
        except CacheUnavailableError as error:
            self._failed(name, error, time.monotonic() - started_s)
            raise
        self._came_through(name)
        return result

    def _stream(self, name: str, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Pass on a stream; what its reader does between two items is not the cache's time."""
        self._check()
        stream, waited_s, done = begin(), 0.0, object()
        while True:
            started_s = time.monotonic()
            try:
                item = next(stream, done)
            except CacheUnavailableError as error:
                self._failed(name, error, waited_s + time.monotonic() - started_s)
                raise
            waited_s += time.monotonic() - started_s
            if item is done:
                break
            yield item  # type: ignore[misc]  # not the mark
        self._came_through(name)

    def _check(self) -> None:
        if self._fault:
            self._count("cache_calls_spared")
            raise CacheUnavailableError(f"the cache is left alone until it answers again: {self._fault}")

    def _came_through(self, name: str) -> None:
        with self._lock:
            self._lost_s = 0.0
            if name == self._failing:
                self._failing, self._pause_s = "", FIRST_PROBE_S

    def _failed(self, name: str, error: CacheUnavailableError, lost_s: float) -> None:
        with self._lock:
            self._lost_s += lost_s
            if self._fault or self._lost_s < LOST_S or self._ending.is_set():
                return
            self._fault, self._failing, self._lost_s = str(error), name, 0.0
        self._count("cache_circuit_opened")
        _log.warning("the cache is left alone until it answers again: %s", error)
        threading.Thread(target=self._probe, name="kvboost-probe", daemon=True).start()

    def _probe(self) -> None:
        """Ask until the cache answers: the one thread that does, as long as the circuit is open."""
        while not self._ending.wait(self._pause_s):
            with self._lock:
                self._pause_s = min(2 * self._pause_s, MOST_PROBE_S)
                namespaces = list(self._namespaces.values())
            try:
                self._ask(namespaces)
            except CacheUnavailableError:
                continue
            except Exception:  # noqa: BLE001 - it answers, and what it says is for the next caller to hear
                _log.info("the cache answers again, with an error", exc_info=True)
            with self._lock:
                self._fault = ""
            _log.warning("the cache answers again")
            return

    def _ask(self, namespaces: Sequence[Namespace]) -> None:
        """Announce what was open: a cache that was started again has forgotten it."""
        for namespace in namespaces:
            self._inner.open(namespace)
        if not namespaces:
            self._inner.stats()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _PartBreaker(CircuitBreaker):
    """A breaker around a cache that can send the first layers of all chunks before the last of any."""

    def fetch_parts(self, namespace: str, chunk_ids: Sequence[int], parts: int) -> Iterator[ChunkPart]:
        """Yield the first part of every chunk that is still there, then the second of every chunk, and so on."""
        source = self._inner
        if not isinstance(source, PartSource):
            raise TypeError(f"{type(source).__name__} cannot send parts")
        return self._stream("fetch", lambda: source.fetch_parts(namespace, chunk_ids, parts))
