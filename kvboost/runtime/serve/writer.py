"""Storing off the critical path: one background thread that offers new chunks to the cache."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from contextvars import copy_context

from kvboost.background import compute_alone
from kvboost.errors import FallbackWarning, KVBoostError
from kvboost.protocols import ChunkCache
from kvboost.runtime.control.counters import ReuseCounters
from kvboost.types import PutReceipt, PutRequest


class Writer:
    """Runs put jobs in order.

    A cache fault, or no memory left, costs the stored chunks, never the request: it is warned about at the next
    :meth:`flush` and counted as ``put_failures``.
    """

    def __init__(self, cache: ChunkCache, counters: ReuseCounters) -> None:
        self._cache = cache
        self._counters = counters
        self._executor = ThreadPoolExecutor(1, "kvboost-put", initializer=compute_alone)
        self._lock = threading.Lock()
        self._pending: list[Future[PutReceipt]] = []

    def submit(self, build: Callable[[], PutRequest]) -> Future[PutReceipt]:
        """Build a request and put it, both in the background."""
        with self._lock:
            self._pending = [job for job in self._pending if not job.done() or job.exception() is not None]
            # In the caller's context, so that a trace of the request shows its puts.
            job = self._executor.submit(copy_context().run, self._put, build)
            self._pending.append(job)
        return job

    def barrier(self) -> Future[None]:
        """Return what is done once everything submitted so far was put."""
        return self._executor.submit(_nothing)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything submitted was put, ``timeout_s`` at most in all."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            pending, self._pending = self._pending, []
        for job in pending:
            try:
                job.result(None if end_s is None else max(end_s - time.monotonic(), 0.0))
            except FutureTimeoutError:
                with self._lock:
                    self._pending.append(job)
            # A device out of memory is a RuntimeError.
            except (KVBoostError, RuntimeError, MemoryError) as error:
                self._counters.add("put_failures")
                warnings.warn(f"new chunks were not stored: {error}", FallbackWarning, stacklevel=2)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep what is submitted inside from being put until the block ends; do not flush inside."""
        release = threading.Event()
        self._executor.submit(release.wait)
        try:
            yield
        finally:
            release.set()

    def close(self) -> None:
        """Put what is pending and stop the thread."""
        self.flush()
        self._executor.shutdown()

    def _put(self, build: Callable[[], PutRequest]) -> PutReceipt:
        request = build()
        if not request.chunks:
            return PutReceipt()
        receipt = self._cache.put(request)
        self._counters.add("stored_chunks", receipt.stored)
        return receipt


def _nothing() -> None:
    """Run after everything before it."""
