"""One request at a time: callers wait in order, and leave the queue when their call ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, TypeVar

import grpc

E = TypeVar("E")

_END = object()


class Turn(Generic[E]):
    """One caller's turn: where its events go, and whether it is still there."""

    def __init__(self) -> None:
        self._events: SimpleQueue[object] = SimpleQueue()
        self._gone = threading.Event()

    def gone(self) -> bool:
        """Whether the caller has gone, or its deadline has passed."""
        return self._gone.is_set()

    def emit(self, event: E) -> None:
        """Send an event to the caller."""
        self._events.put(event)

    def leave(self) -> None:
        """Note that the caller has gone, and stop waiting for events."""
        self._gone.set()
        self._events.put(_END)

    def end(self, job: Future[None]) -> None:
        """Send the error of a finished ``job``, if there is one, and the end."""
        if not job.cancelled() and job.exception() is not None:
            self._events.put(job.exception())
        self._events.put(_END)

    def events(self) -> Iterator[E]:
        """Yield events until the end; an error is raised."""
        while True:
            event = self._events.get()
            if event is _END:
                return
            if isinstance(event, BaseException):
                raise event
            yield event  # type: ignore[misc]


class Turns:
    """Runs the work of all callers on one thread, in order of arrival.

    One thread, and not only a lock: torch keeps a pool of workers for every thread that computes.

    Parameters
    ----------
    max_callers
        Callers that wait or are served; further ones are refused.
    """

    def __init__(self, max_callers: int) -> None:
        self.max_callers = max_callers
        self._free = threading.BoundedSemaphore(max_callers)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate")

    def events(self, work: Callable[[Turn[E]], None], context: grpc.ServicerContext) -> Iterator[E]:
        """Wait for a turn, run ``work``, and yield what it emits; for a caller that goes away, nothing more."""
        if not self._free.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self.max_callers} calls are waiting or served already; try again later, or raise server.max_workers",
            )
        try:
            turn: Turn[E] = Turn()
            job = self._executor.submit(work, turn)
            job.add_done_callback(turn.end)

            def leave() -> None:
                turn.leave()
                job.cancel()

            if not context.add_callback(leave):
                leave()
            yield from turn.events()
        finally:
            self._free.release()

    def run(self, work: Callable[[], None]) -> None:
        """Run ``work`` on the thread, after everything that waits, and wait for it."""
        self._executor.submit(work).result()

    def close(self) -> None:
        """Drop who waits, and wait for who is served."""
        self._executor.shutdown(cancel_futures=True)
