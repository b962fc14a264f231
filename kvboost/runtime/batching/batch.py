"""The scheduler: requests in order of arrival, between them one decode step of all that are under way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kvboost.errors import RuntimeUnavailableError
from kvboost.runtime.batching.budget import ByteBudget
from kvboost.runtime.batching.check import batching_obstacle
from kvboost.runtime.batching.preparing import THREADS, Preparing
from kvboost.runtime.batching.request import BatchRequest, BatchState, Ended, Listener
from kvboost.runtime.batching.row import Row, with_stages
from kvboost.runtime.batching.seat import Seat
from kvboost.runtime.batching.step import decode_step
from kvboost.runtime.batching.told import Told
from kvboost.runtime.batching.waiting import Promise, Waiting, WaitingList
from kvboost.runtime.serve.answer import generate_answer
from kvboost.runtime.serve.engine import Engine

# How often callers are asked whether they have gone, where nothing else happens.
_POLL_S = 0.02
# What a prompt counts at least, in tokens: repair takes time as well.
_PROMPT_COST_TOKENS = 64
_log = logging.getLogger(__name__)


class Batch:
    """Answers several requests at once on one model, on one thread of its own.

    One thread, and not only a lock: torch keeps a pool of workers for every thread that computes.

    Between two decode steps at most ``prefill_tokens`` tokens of prompts are computed, so a running row waits for
    these and one step at most between two of its tokens, however many requests come. What may wait for the cache runs
    on other threads (:class:`Preparing`). Requests begin in order of arrival; of those whose K/V are there, the one
    that came first is computed first.
    A model whose rows cannot share a step answers one request after the other.

    Parameters
    ----------
    max_batch
        Requests under way at the same time.
    max_queue
        Requests that wait beside those; further ones are refused.
    prefill_tokens
        Prompt tokens that are computed between two steps of running rows, at most; a prompt that meets no running
        row is computed at once.
    max_bytes
        K/V of the requests under way; who would exceed it waits, and so does who came later. 0 for
        :meth:`ByteBudget.of` to choose.
    """

    def __init__(
        self, engine: Engine, max_batch: int = 8, max_queue: int = 64, prefill_tokens: int = 256, max_bytes: int = 0
    ) -> None:
        self.engine = engine
        self.max_batch = max_batch
        self._turn = engine.preparer.probe_lock
        self.obstacle = batching_obstacle(engine.model, engine.support, self._turn)
        self.budget = ByteBudget.of(engine.support.layout, engine.model.device, max_bytes)
        self._prefill_tokens = prefill_tokens
        self._waiting = WaitingList(max_batch, max_queue)
        self._running: list[Row] = []
        self._filling: Row | None = None
        self._preparing = Preparing(engine, min(THREADS, max_batch), self._waiting.wake)
        self._thread = threading.Thread(target=self._run, name="kvboost-batch", daemon=True)
        self._thread.start()

    def submit(self, request: BatchRequest, listener: Listener) -> None:
        """Answer ``request``; tokens, the end and errors go to ``listener``.

        Raises
        ------
        InputError
            If its K/V would exceed the byte budget on their own.
        RuntimeBusyError
            If too many requests wait already.
        RuntimeUnavailableError
            If the batch was closed.
        """
        self.budget.check(request)
        self._waiting.put(Waiting(Told(listener, self.engine.counters), time.perf_counter(), request))

    def submit_alone(self, work: Callable[[], None], listener: Listener) -> None:
        """Run ``work`` in its turn with nothing else under way; only its errors go to ``listener``.

        Raises as :meth:`submit`.
        """
        self._waiting.put(Waiting(Told(listener, self.engine.counters), time.perf_counter(), None, work))

    def run(self, work: Callable[[], None]) -> None:
        """Run ``work`` in its turn, with nothing else under way, and wait for it; its errors are raised."""
        promise = Promise()
        self.submit_alone(lambda: promise.fulfil(work), promise)
        promise.result()

    def state(self) -> BatchState:
        """Return what the batch is doing now."""
        busy, waiting = self._waiting.figures()
        return BatchState(self.max_batch, self._waiting.max_queue, busy, waiting, self.obstacle)

    def close(self) -> None:
        """Refuse new requests, drop those that wait, and wait for those under way."""
        for entry in self._waiting.close():
            entry.listener.on_error(RuntimeUnavailableError("the runtime is shutting down; ask another, or later"))
        self._thread.join()
        self._preparing.close()

    @torch.no_grad()
    def _run(self) -> None:
        while self._waiting.await_work(len(self._under_way()) + len(self._preparing)):
            try:
                self._drop_gone()
                self._begin()
                self._admit()
                self._drop_gone()
                if not self._under_way():
                    self._waiting.pause(_POLL_S)
                self._step(self._running)
            except Exception as error:  # noqa: BLE001 - a thread that dies would leave every caller waiting for ever
                _log.exception("the batch failed")
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Fail all that are under way, or who is next: what failed once may fail for ever, and each must hear of it."""
        rows = self._under_way()
        entry = None if rows or len(self._preparing) else self._waiting.first()
        for row in rows:
            self._fail(row, error)
        self._preparing.fail(error)
        if entry is not None and self._waiting.take(entry):
            self._waiting.done()
            entry.listener.on_error(error)

    def _under_way(self) -> list[Row]:
        return [*self._running, *([self._filling] if self._filling is not None else [])]

    def _drop_gone(self) -> None:
        """Let rows go whose callers went away; their K/V are freed with them."""
        for row in self._under_way():
            if row.listener.gone():
                self.engine.counters.add("cancelled_requests")
                self._leave(row)

    def _admit(self) -> None:
        """Compute prompts in their order, until running rows have waited for ``prefill_tokens``."""
        budget = self._prefill_tokens
        while budget >= min(_PROMPT_COST_TOKENS, self._prefill_tokens):
            if self._filling is None:
                self._begin()
                self._filling = self._next_row()
            row = self._filling
            if row is None:
                return
            piece = min(row.prompt_left, budget) if self._running else 0
            self._fill(row, budget if self._running else None)
            budget -= max(piece, _PROMPT_COST_TOKENS)

    def _fill(self, row: Row, max_tokens: int | None) -> None:
        """Compute a piece of a prompt; with its last one, choose the first token."""
        try:
            logits = row.prefill(max_tokens)
            if logits is None:
                return
            self._filling = None
            self._running.append(row)
            self._take(row, logits)
        except Exception as error:  # noqa: BLE001 - it is the caller's to hear, and no other row's
            self._fail(row, error)

    def _begin(self) -> None:
        """Start the requests that have waited longest, as many as there is room for."""
        while (entry := self._waiting.first()) is not None:
            under_way = len(self._under_way()) + len(self._preparing)
            if under_way >= (1 if self._needs_all(entry) else self.max_batch):
                return
            if entry.request is not None and not self.budget.has_room(entry.request):
                return
            if not self._waiting.take(entry):
                continue
            if entry.request is None or self._needs_all(entry):
                self._run_alone(entry)
            else:
                self._preparing.begin(entry, entry.request, Seat(self._waiting, self.budget, entry.request))

    def _run_alone(self, entry: Waiting) -> None:
        """Run what needs the model to itself; only one that has left no other under way is given it."""
        waited_s = time.perf_counter() - entry.since_s
        seat = Seat(self._waiting, self.budget, entry.request)
        try:
            if entry.work is not None:
                entry.context.run(entry.work)
            elif entry.request is not None:
                entry.context.run(self._answer_alone, entry.request, entry.listener, waited_s)
        except Exception as error:  # noqa: BLE001 - it is the caller's to hear, and no other row's
            entry.listener.on_error(error)
        finally:
            seat.leave()

    def _next_row(self) -> Row | None:
        """Return the row of the request that has been under way longest of those whose K/V are there."""
        while (begun := self._preparing.ready()) is not None:
            if begun.entry.listener.gone():
                self.engine.counters.add("cancelled_requests")
                begun.seat.leave()
                continue
            try:
                return begun.entry.context.run(Row, self.engine, begun, batched=not self.obstacle)
            except Exception as error:  # noqa: BLE001 - it is the caller's to hear, and no other row's
                begun.seat.leave()
                begun.entry.listener.on_error(error)
        return None

    def _needs_all(self, entry: Waiting) -> bool:
        """Return whether nothing else may be under way: work of its own, or an answer of a model without batches."""
        return entry.request is None or (bool(self.obstacle) and entry.request.max_new_tokens > 0)

    def _answer_alone(self, request: BatchRequest, listener: Listener, waited_s: float) -> None:
        """Answer by the model's own ``generate()``."""

        def on_token(token_id: int) -> bool:
            return listener.on_token(token_id) or listener.gone()

        given = generate_answer(
            self.engine,
            request.token_ids,
            request.max_new_tokens,
            request.sampling,
            on_token,
            skip_cache=request.skip_cache,
        )
        report = with_stages(given.report, {**request.stages_s, "queue": waited_s})
        listener.on_end(Ended(replace(given, report=report)))

    def _step(self, rows: list[Row]) -> None:
        """Run one decode step of ``rows``; if it fails, each row alone, so that one row's fault is only its own."""
        if not rows:
            return
        stepped = list(rows)
        try:
            logits = decode_step(
                self.engine.model,
                [row.cache for row in stepped],
                [row.answer[-1] for row in stepped],
                self._turn,
            )
        except Exception as error:  # noqa: BLE001 - it is the caller's to hear, and no other row's
            self._retry(stepped, error)
            return
        most_likely = logits.argmax(-1).tolist()
        for i, row in enumerate(stepped):
            try:
                self._take(row, logits[i : i + 1], most_likely[i] if row.plain else None)
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(row, error)

    def _retry(self, rows: list[Row], error: Exception) -> None:
        if len(rows) == 1:
            self._fail(rows[0], error)
            return
        for row in rows:
            row.cache.set_length(row.length)  # some layers may have appended already
        for row in rows:
            self._step([row])

    def _take(self, row: Row, logits: Tensor, most_likely: int | None = None) -> None:
        if row.take(logits, most_likely):
            self._leave(row)
            row.listener.on_end(row.context.run(row.finish))

    def _fail(self, row: Row, error: Exception) -> None:
        self._leave(row)
        row.listener.on_error(error)

    def _leave(self, row: Row) -> None:
        if row is self._filling:
            self._filling = None
        self._running = [other for other in self._running if other is not row]
        row.seat.leave()
