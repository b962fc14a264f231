"""Embeds new chunks beside the callers, so that a put never waits for a model."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from sys import getsizeof
from typing import Generic, TypeVar

from kvboost.background import give_way

_log = logging.getLogger(__name__)

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class EmbeddingReport:
    """What became of the texts handed to the worker, as counts since the cache started.

    ``skipped``: the queue was full, of texts or of their bytes. ``failed``: the embedding model raised or gave
    unusable vectors. In both cases the chunk stays stored and is found by hash, only not by similarity.
    """

    waiting: int = 0
    embedded: int = 0
    skipped: int = 0
    failed: int = 0


class EmbeddingWorker(Generic[Key]):
    """One background thread of low priority that takes texts in batches; it runs only while there is work.

    Parameters
    ----------
    embed
        Called with keys and texts, outside any lock of the worker. May raise.
    batch
        Texts per call. Small, because a look-up that needs the same model waits for the batch in progress (for
        no more than that one: see :meth:`paused`).
    max_waiting, max_waiting_bytes
        Texts that may wait, and their bytes; more are skipped and counted, so that a slow model cannot fill the
        memory.
    """

    def __init__(
        self,
        embed: Callable[[Sequence[Key], Sequence[str]], None],
        batch: int,
        max_waiting: int,
        max_waiting_bytes: int = 16 << 20,
    ) -> None:
        self._embed = embed
        self._batch = batch
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._queue: deque[tuple[Key, str]] = deque()
        self._in_progress = 0
        self._pauses = self._pauses_ended = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._embedded = self._skipped = self._failed = 0

    def submit(self, key: Key, text: str) -> None:
        """Queue one text. Never waits."""
        with self._changed:
            if self._closed:
                return
            nbytes = getsizeof(text)
            if len(self._queue) >= self._max_waiting or self._waiting_bytes + nbytes > self._max_waiting_bytes:
                if self._skipped == 0:
                    _log.warning("embedding queue is full at %d texts; newer chunks are found by hash only", len(self))
                self._skipped += 1
                return
            self._queue.append((key, text))
            self._waiting_bytes += nbytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvboost-embedding", daemon=True)
                self._thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Begin no batch meanwhile: somebody is waiting for the answer of the same model.

        A batch waits for those only that are here when its turn comes. So under look-ups without a pause it gets its
        turn after each round of them, and a look-up waits for no more than one batch.
        """
        with self._changed:
            self._pauses += 1
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._pauses_ended += 1
                self._changed.notify_all()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing waits or is in progress; return False if ``timeout_s`` ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._in_progress, timeout_s)

    def close(self) -> None:
        """Forget what waits, and wait for the batch in progress."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def report(self) -> EmbeddingReport:
        """Return the counts so far."""
        with self._changed:
            return EmbeddingReport(len(self), self._embedded, self._skipped, self._failed)

    def __len__(self) -> int:
        return len(self._queue) + self._in_progress

    def _run(self) -> None:
        give_way()
        while batch := self._take():
            failed = False
            try:
                self._embed([key for key, _ in batch], [text for _, text in batch])
            # A model of the user's may raise anything; the chunks are stored and only lack a vector.
            except Exception as error:  # noqa: BLE001
                failed = True
                # The error's own text may quote the prompt, so only its type is logged.
                _log.warning("embedding %d chunks failed with %s; found by hash only", len(batch), type(error).__name__)
            with self._changed:
                self._in_progress = 0
                self._failed += len(batch) * failed
                self._embedded += len(batch) * (not failed)
                self._changed.notify_all()

    def _take(self) -> list[tuple[Key, str]]:
        with self._changed:
            turn = self._pauses_ended + self._pauses
            self._changed.wait_for(lambda: not self._pauses or self._pauses_ended >= turn or self._closed)
            batch = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            self._waiting_bytes -= sum(getsizeof(text) for _, text in batch)
            self._in_progress = len(batch)
            if not batch:
                self._thread = None
            return batch
