"""Storing off the critical path: one background thread that offers new chunks to the cache."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context

import torch

from kvboost.background import compute_alone
from kvboost.circuit_breaker import fault_of
from kvboost.errors import CacheUnavailableError, FallbackWarning, KVBoostError, StoringError
from kvboost.protocols import ChunkCache
from kvboost.runtime.control.counters import ReuseCounters
from kvboost.types import PutReceipt, PutRequest

Build = Callable[[], PutRequest]
MOST_WAITING = 64
"""Puts that may wait, each with the K/V of its request; further ones are dropped."""
_EDGE_TOKENS = 8
_log = logging.getLogger(__name__)


class Writer:
    """Runs put jobs in order. Safe to use from several threads.

    What it does not take at all, since too much waits or the cache does not answer, is counted as ``puts_dropped``.

    Whatever goes wrong costs the stored chunks, never a request: it is counted as ``put_failures`` when it happens, and
    warned about once, by the next :meth:`flush` of any thread. What is neither a fault of the cache nor a lack of
    memory is a fault of this program: it becomes a :class:`~kvboost.errors.StoringError`, and is logged with its trace.
    """

    def __init__(self, cache: ChunkCache, counters: ReuseCounters) -> None:
        self._cache = cache
        self._counters = counters
        self._executor = ThreadPoolExecutor(1, "kvboost-put", initializer=compute_alone)
        self._lock = threading.Lock()
        self._pending: list[Future[PutReceipt]] = []
        self._prompts: dict[Future[PutReceipt], Sequence[int]] = {}

    def submit(self, build: Build, at_once: bool = False, prompt: Sequence[int] = ()) -> Future[PutReceipt]:
        """Build a request and put it, both in the background.

        Parameters
        ----------
        at_once
            Build it here and now: afterwards nothing reads what ``build`` reads, however long the put takes. For K/V
            that the caller of ``generate()`` is about to own, and may change.
        prompt
            Tokens of the prompt that was computed, without the answer; see :meth:`await_turn`.
        """
        if self._is_full():
            self._counters.add("puts_dropped")
            refused: Future[PutReceipt] = Future()
            refused.set_exception(CacheUnavailableError(f"not stored: {self._reason()}"))
            return refused
        if at_once:
            build = _built(build)
        with self._lock:
            self._pending = [job for job in self._pending if not job.done() or job.exception() is not None]
            # In the caller's context, so that a trace of the request shows its puts.
            job = self._executor.submit(copy_context().run, self._put, build)
            self._pending.append(job)
            self._prompts = {each: self._prompts[each] for each in self._prompts if not each.done()} | {job: prompt}
        return job

    def await_turn(self, token_ids: Sequence[int], timeout_s: float) -> None:
        """Wait until the prompts that ``token_ids`` go on from were put, ``timeout_s`` at most: a chat's last turns."""
        with self._lock:
            jobs = [job for job, prompt in self._prompts.items() if prompt and _goes_on(token_ids, prompt)]
        wait(jobs, timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything submitted so far, by any thread, was put; ``timeout_s`` at most in all."""
        with self._lock:
            jobs = list(self._pending)
        wait(jobs, timeout_s)
        with self._lock:
            # Two threads may have waited for the same jobs; one of them warns.
            failures = [error for job in self._pending if job.done() and (error := job.exception()) is not None]
            self._pending = [job for job in self._pending if not job.done()]
        for error in failures:
            warnings.warn(f"new chunks were not stored: {error}", FallbackWarning, stacklevel=2)

    def _is_full(self) -> bool:
        with self._lock:
            waiting = sum(not job.done() for job in self._pending)
        return waiting >= MOST_WAITING or bool(fault_of(self._cache))

    def _reason(self) -> str:
        return fault_of(self._cache) or f"{MOST_WAITING} puts wait already; the cache does not keep up"

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

    def _put(self, build: Build) -> PutReceipt:
        try:
            request = build()
            if not request.chunks:
                return PutReceipt()
            receipt = self._cache.put(request)
        except BaseException as error:
            self._counters.add("put_failures")
            if isinstance(error, KVBoostError | MemoryError | torch.OutOfMemoryError):
                raise
            _log.exception("storing new chunks failed")
            raise StoringError(f"{type(error).__name__} while they were cut out and put; see the log") from error
        self._counters.add("stored_chunks", receipt.stored)
        return receipt


def _built(build: Build) -> Build:
    """Run ``build`` now; return what gives its result, or raises its error, later."""
    try:
        request = build()
    except Exception as error:  # noqa: BLE001 - raised again, where every failure to store is dealt with
        failure = error

        def fail() -> PutRequest:
            raise failure

        return fail
    return lambda: request


def _goes_on(token_ids: Sequence[int], prompt: Sequence[int]) -> bool:
    """Return whether ``token_ids`` begin with ``prompt``; its last tokens may be cut otherwise before an answer."""
    length = max(len(prompt) - _EDGE_TOKENS, min(len(prompt), _EDGE_TOKENS))
    return list(token_ids[:length]) == list(prompt[:length])
