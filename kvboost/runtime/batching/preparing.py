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
class Begun:
    """A request under way whose K/V are being gathered.

    Attributes
    ----------
    waited_s
        Seconds that it waited before.
    gathered
        Its K/V in place, and when they were (``perf_counter``).
    """

    entry: Waiting
    request: BatchRequest
    seat: Seat
    waited_s: float
    gathered: Future[tuple[Gathered, float]]


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
        waited_s = time.perf_counter() - entry.since_s
        job: Future[tuple[Gathered, float]]
        if request.skip_cache:
            job = Future()
            try:
                job.set_result(self._gather(request))
            except Exception as error:  # noqa: BLE001 - the caller's to hear, when its turn comes
                job.set_exception(error)
        else:
            job = self._executor.submit(entry.context.run, self._gather, request)
        self._begun.append(Begun(entry, request, seat, waited_s, job))
        job.add_done_callback(lambda _: self._on_ready())

    def ready(self) -> Begun | None:
        """Return the one that has been under way longest of those that are ready; it is no longer held here."""
        found = next((begun for begun in self._begun if begun.gathered.done()), None)
        if found is not None:
            self._begun.remove(found)
        return found

    def fail(self, error: Exception) -> None:
        """Tell everybody here of an error; what they hold is given back when their threads are done with it."""
        begun, self._begun = self._begun, []
        for each in begun:
            each.gathered.add_done_callback(lambda _, seat=each.seat: seat.leave())  # type: ignore[misc]
            each.entry.listener.on_error(error)

    def close(self) -> None:
        """Stop the threads."""
        self._executor.shutdown()

    def _gather(self, request: BatchRequest) -> tuple[Gathered, float]:
        engine = self._engine
        gathered = engine.gatherer.gather(
            request.token_ids,
            min(request.max_new_tokens, MOST_NEW_TOKENS),
            request.policy,
            engine.audit.controller if request.policy is None else None,
            "" if request.skip_cache else engine.obstacle(len(request.token_ids)) or None,
        )
        return gathered, time.perf_counter()
