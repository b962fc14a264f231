"""Listeners that remember what they were told, and requests of few words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvboost.reuse import ReuseReport
from kvboost.runtime.batching import Batch, BatchRequest, Ended
from kvboost.runtime.serve.answer import generate_answer
from kvboost.runtime.serve.engine import Engine
from kvboost.sampling import GREEDY, Sampling

TIMEOUT_S = 60


class Heard:
    """What a listener was told; ``on_each`` is called with the number of tokens so far."""

    def __init__(self, on_each: Callable[[int], object] = lambda count: None) -> None:
        self.tokens: list[int] = []
        self.left = False
        self.begun = threading.Event()
        self.over = threading.Event()
        self._on_each = on_each
        self._ended: Ended | None = None
        self._error: BaseException | None = None

    def gone(self) -> bool:
        return self.left

    def on_token(self, token_id: int) -> bool:
        self.tokens.append(token_id)
        self.begun.set()
        return bool(self._on_each(len(self.tokens)))

    def on_end(self, ended: Ended) -> None:
        self._ended = ended
        self.over.set()

    def on_error(self, error: BaseException) -> None:
        self._error = error
        self.over.set()

    def ended(self) -> Ended:
        """Wait for the end; raise the error if there was one."""
        assert self.over.wait(TIMEOUT_S)
        if self._error is not None:
            raise self._error
        assert self._ended is not None
        return self._ended

    def answer(self) -> list[int]:
        """Wait for the end, and return the answer."""
        answer = list(self.ended().answer.token_ids)
        assert answer == self.tokens
        return answer

    def report(self) -> ReuseReport:
        return self.ended().answer.report


def request(
    token_ids: Sequence[int], max_new_tokens: int = 8, sampling: Sampling = GREEDY, **more: Any
) -> BatchRequest:
    return BatchRequest(tuple(token_ids), max_new_tokens, sampling, time.perf_counter(), **more)


def ask(batch: Batch, *arguments: Any, heard: Heard | None = None, **more: Any) -> Heard:
    """Submit a request; return its listener."""
    heard = heard or Heard()
    batch.submit(request(*arguments, **more), heard)
    return heard


def alone(engine: Engine, asked: BatchRequest) -> list[int]:
    """Return what the single path answers, by ``generate()``."""
    given = generate_answer(
        engine,
        asked.token_ids,
        asked.max_new_tokens,
        asked.sampling,
        lambda token_id: False,
        skip_cache=asked.skip_cache,
    )
    return list(given.token_ids)
