"""Calls whose other side lets the server wait are ended, so that they do not keep its threads.

Only waiting for the other side counts: for its next message, or until it has taken ours. What the server itself takes
for an answer does not.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import count
from typing import Any

import grpc

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long one side of a call may let the other wait.

    Attributes
    ----------
    idle_s
        Seconds without a message, or without one being taken.
    total_s
        Seconds after which a call that still waits for its other side is ended, however lively it is.
    """

    idle_s: float = math.inf
    total_s: float = math.inf


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class _Call:
    context: grpc.ServicerContext
    limits: Limits
    end_s: float
    method: str


class Watch:
    """Cancels calls that wait too long, from one thread that runs while any call waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = count()
        self._waits: dict[int, tuple[float, _Call]] = {}
        self._wakes_s = math.inf
        self._closed = False
        threading.Thread(target=self._run, name="idle", daemon=True).start()

    def watched(self, handler: Any, behaviour: Callable[..., Any], limits: Limits, method: str) -> Callable[..., Any]:
        """Return a handler of streams of requests that does what ``behaviour`` does, within ``limits``."""

        def begin(requests: Iterator[Any], context: grpc.ServicerContext) -> tuple[_Call, Any]:
            call = _Call(context, limits, time.monotonic() + limits.total_s, method)
            arriving = self._arriving(call, requests)
            return call, arriving if handler.request_streaming else _single(arriving, context)

        @wraps(behaviour)
        def unary(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            _, request = begin(requests, context)
            return behaviour(request, context)

        @wraps(behaviour)
        def stream(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            call, request = begin(requests, context)
            for response in behaviour(request, context):
                with self._waiting(call):
                    yield response

        return stream if handler.response_streaming else unary

    def close(self) -> None:
        """End the thread; calls are watched no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _arriving(self, call: _Call, requests: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._waiting(call):
                try:
                    request = next(requests)
                except StopIteration:
                    return
            yield request

    @contextmanager
    def _waiting(self, call: _Call) -> Iterator[None]:
        end_s = min(time.monotonic() + call.limits.idle_s, call.end_s)
        if end_s == math.inf:
            yield
            return
        number = next(self._numbers)
        with self._changed:
            self._waits[number] = (end_s, call)
            if end_s < self._wakes_s:
                self._wakes_s = end_s
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._waits.pop(number, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now_s = time.monotonic()
                late = [number for number, (end_s, _) in self._waits.items() if end_s <= now_s]
                calls = [self._waits.pop(number)[1] for number in late]
                if not calls:
                    self._wakes_s = min((end_s for end_s, _ in self._waits.values()), default=math.inf)
                    self._changed.wait(None if self._wakes_s == math.inf else self._wakes_s - now_s)
            for call in calls:
                _log.info("ended a call of %s: the other side let it wait", call.method)
                call.context.cancel()


def _single(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
    for request in requests:
        return request
    return context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call holds no message")
