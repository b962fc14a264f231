"""Looking up, fetching and placing for new requests while the batch's own thread decodes.

However slow the cache is, running answers do not wait for it: no pass of the model runs here, and what these threads
compute they compute alone (see :func:`kvboost.background.compute_alone`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from kvboost.background import compute_alone
from kvboost.runtime.batching.request import BatchRequest
from kvboost.runtime.batching.seat import Seat
from kvboost.runtime.batching.waiting import Waiting
from kvboost.runtime.prepare.prepared import Gathered
from kvboost.runtime.serve.engine import Engine
from kvboost.runtime.serve.request import MOST_NEW_TOKENS

THREADS = 4
"""Requests that wait for the cache at the same time; a slow look-up holds up no more than its own and those behind."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A request whose K/V are in place.

    Attributes
    ----------
    queue_s
        Seconds that it waited until somebody took care of it.
    at_s
        When its K/V were there (``perf_counter``).
    """

    gathered: Gathered
    queue_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Begun:
    """A request under way whose K/V are being gathered."""

    entry: Waiting
    request: BatchRequest
    seat: Seat
    placed: Future[Placed]


class Preparing:
    """Gathers for the requests that have begun. Its methods are called on the batch's thread.

    Parameters
    ----------
    on_ready
        Called on any thread when one more is ready.
    """

    def __init__(self, engine: Engine, threads: int, on_ready: Callable[[], None]) -> None:
        self._engine = engine
        self._on_ready = on_ready
        self._executor = ThreadPoolExecutor(threads, "kvboost-prepare", initializer=compute_alone)
        self._begun: list[Begun] = []

    def __len__(self) -> int:
        return len(self._begun)

    def begin(self, entry: Waiting, request: BatchRequest, seat: Seat) -> None:
        """Gather for a request; one that needs no look-up is ready at once, whatever the others wait for."""
        job: Future[Placed]
        if request.skip_cache:
            job = Future()
            try:
                job.set_result(self._gather(request, entry.since_s))
            except Exception as error:  # noqa: BLE001 - the caller's to hear, when its turn comes
                job.set_exception(error)
        else:
            job = self._executor.submit(entry.context.run, self._gather, request, entry.since_s)
        self._begun.append(Begun(entry, request, seat, job))
        job.add_done_callback(lambda _: self._on_ready())

    def ready(self) -> Begun | None:
        """Return the one that has been under way longest of those that are ready; it is no longer held here."""
        found = next((begun for begun in self._begun if begun.placed.done()), None)
        if found is not None:
            self._begun.remove(found)
        return found

    def fail(self, error: Exception) -> None:
        """Tell everybody here of an error; what they hold is given back when their threads are done with it."""
        begun, self._begun = self._begun, []
        for each in begun:
            each.placed.add_done_callback(lambda _, seat=each.seat: seat.leave())  # type: ignore[misc]
            each.entry.listener.on_error(error)

    def close(self) -> None:
        """Stop the threads."""
        self._executor.shutdown()

    def _gather(self, request: BatchRequest, since_s: float) -> Placed:
        queue_s, engine = time.perf_counter() - since_s, self._engine
        # Before its gatherer is asked for: a model that has changed goes over to another.
        declined = "" if request.skip_cache else engine.obstacle(len(request.token_ids)) or None
        gathered = engine.gatherer.gather(
            request.token_ids,
            min(request.max_new_tokens, MOST_NEW_TOKENS),
            request.policy,
            engine.audit.controller if request.policy is None else None,
            declined,
        )
        return Placed(gathered, queue_s, time.perf_counter())
