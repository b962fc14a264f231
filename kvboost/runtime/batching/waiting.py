"""Requests in order of arrival, and how many there may be."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from kvboost.errors import RuntimeBusyError, RuntimeUnavailableError
from kvboost.runtime.batching.request import BatchRequest, Ended, Listener


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """One that waits: a request, or work that needs the model for itself; since when (``perf_counter``).

    ``context`` is its caller's: what is done for it is done there, so that a trace of the request shows it.
    """

    listener: Listener
    since_s: float
    request: BatchRequest | None
    work: Callable[[], None] | None = None
    context: Context = field(default_factory=copy_context)


class WaitingList:
    """First come, first served; safe from several threads.

    Who was taken counts as busy until :meth:`done`. A new one is refused when ``max_batch`` are busy and
    ``max_queue`` wait; those whose callers have gone do not count.
    """

    def __init__(self, max_batch: int, max_queue: int) -> None:
        self.max_queue = max_queue
        self._max_batch = max_batch
        self._entries: deque[Waiting] = deque()
        self._busy = 0
        self._closed = False
        self._changed = threading.Condition()
        self._woken = False

    def put(self, entry: Waiting) -> None:
        """Add one at the end.

        Raises
        ------
        RuntimeBusyError, RuntimeUnavailableError
        """
        with self._changed:
            if self._closed:
                raise RuntimeUnavailableError("the runtime is shutting down; ask another, or later")
            self._drop_gone()
            if self._busy + len(self._entries) >= self._max_batch + self.max_queue:
                raise RuntimeBusyError(
                    f"{self._busy} requests are under way and {len(self._entries)} wait already; "
                    "try again later, or raise runtime.max_queue"
                )
            self._entries.append(entry)
            self._woken = True
            self._changed.notify_all()

    def await_work(self, under_way: int) -> bool:
        """Return True when something waits or is under way, False once the list is closed and nothing is left."""
        with self._changed:
            while not (self._entries or under_way or self._closed):
                self._changed.wait()
            return bool(self._entries or under_way)

    def wake(self) -> None:
        """End a :meth:`pause`, now or the next one."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def pause(self, timeout_s: float) -> None:
        """Sleep until something new waits, or somebody wakes; ``timeout_s`` at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._woken, timeout_s)
            self._woken = False

    def first(self) -> Waiting | None:
        """Return who is next, if anyone is."""
        with self._changed:
            self._drop_gone()
            return self._entries[0] if self._entries else None

    def take(self, entry: Waiting) -> bool:
        """Take who was next; return False if it no longer waits."""
        with self._changed:
            if not self._entries or self._entries[0] is not entry:
                return False
            self._entries.popleft()
            self._busy += 1
            return True

    def done(self) -> None:
        """Note that one who was taken is no longer under way."""
        with self._changed:
            self._busy -= 1

    def figures(self) -> tuple[int, int]:
        """Return how many are busy and how many wait."""
        with self._changed:
            self._drop_gone()
            return self._busy, len(self._entries)

    def close(self) -> list[Waiting]:
        """Refuse further ones; return those that waited."""
        with self._changed:
            self._closed = self._woken = True
            left = list(self._entries)
            self._entries.clear()
            self._changed.notify_all()
            return left

    def _drop_gone(self) -> None:
        if any(entry.listener.gone() for entry in self._entries):
            self._entries = deque(entry for entry in self._entries if not entry.listener.gone())


class Promise:
    """A listener for work whose result is waited for."""

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    def fulfil(self, work: Callable[[], None]) -> None:
        """Run the work and note that it is done."""
        work()
        self._future.set_result(None)

    def result(self) -> None:
        """Wait; raise what the work raised."""
        self._future.result()

    def gone(self) -> bool:
        """Return False: somebody waits."""
        return False

    def on_token(self, token_id: int) -> bool:
        """Do nothing; work has no tokens."""
        return False

    def on_end(self, ended: Ended) -> None:
        """Do nothing; :meth:`fulfil` ends it."""

    def on_error(self, error: BaseException) -> None:
        """Raise it where the result is waited for."""
        self._future.set_exception(error)
