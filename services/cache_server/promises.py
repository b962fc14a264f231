"""Chunks that a client was told to send: until they are there, or it fails to send them, nobody else need to."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_MOST = 1 << 17  # chunks on their way that are kept in mind; what comes on top may be sent twice


@dataclass(slots=True)
class _Promise:
    chunks: list[bytes]
    left: int
    until_s: float


class Promises:
    """What is on its way. Safe to use from several threads.

    Parameters
    ----------
    promise_s
        Seconds that a client may take until it begins to send.
    """

    def __init__(self, promise_s: float) -> None:
        self._promise_s = promise_s
        self._lock = threading.Lock()
        self._promises: dict[str, _Promise] = {}
        self._promised: set[bytes] = set()

    def claim(self, chunks: Sequence[bytes]) -> tuple[str, list[bool]]:
        """Let a client send those of ``chunks`` that no other is about to; return the promise's name and which."""
        with self._lock:
            self._expire()
            free = [chunk not in self._promised for chunk in chunks]
            mine = list(dict.fromkeys(chunk for chunk, yes in zip(chunks, free, strict=True) if yes))
            if not mine or len(self._promised) + len(mine) > _MOST:
                return "", free
            name = secrets.token_hex(8)
            self._promises[name] = _Promise(mine, sum(free), time.monotonic() + self._promise_s)
            self._promised.update(mine)
            return name, free

    @contextmanager
    def kept(self, name: str, count: int) -> Iterator[None]:
        """Take ``count`` chunks of a promise in, inside the block; once all came, or one failed, it is over."""
        with self._lock:
            promise = self._promises.get(name)
            if promise is not None:
                promise.until_s = math.inf
        try:
            yield
        except BaseException:
            self._end(name)
            raise
        with self._lock:
            if promise is not None:
                promise.left -= count
                promise.until_s = time.monotonic() + self._promise_s
        if promise is not None and promise.left <= 0:
            self._end(name)

    def _end(self, name: str) -> None:
        with self._lock:
            self._forget(name)

    def _expire(self) -> None:
        now_s = time.monotonic()
        for name in [name for name, promise in self._promises.items() if promise.until_s < now_s]:
            self._forget(name)

    def _forget(self, name: str) -> None:
        promise = self._promises.pop(name, None)
        if promise is not None:
            self._promised.difference_update(promise.chunks)
