"""Threads of a server, parted by kind of call, so that one kind never takes another's.

gRPC's Python server runs a handler in the thread pool that the handler brings along. Here every kind of call (a lane)
has a pool of its own with a bounded queue; what finds the queue full is refused at once, with a hint when to come back.
A call also loses its thread when its other side lets it wait too long (:mod:`.grpc_idle`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from kvboost.wire.status import RETRY_KEY

from .grpc_idle import UNLIMITED, Limits, Watch

_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Lane:
    """One kind of call.

    Attributes
    ----------
    name
        For the names of threads, and for who is refused.
    workers
        Calls that run at the same time, each on a thread of its own.
    max_waiting
        Calls that wait beside those; further ones are refused.
    limits
        How long the other side may let such a call wait.
    """

    name: str
    workers: int
    max_waiting: int
    limits: Limits = UNLIMITED

    @property
    def room(self) -> int:
        """Calls that run or wait, at most."""
        return self.workers + self.max_waiting


def in_lane(lane: Lane, behaviour: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler ``behaviour``, with a note of its lane."""
    placed = partial(behaviour)
    placed.__dict__["lane"] = lane
    return placed


# What any server answers about itself. A thread each: nothing that callers do to one keeps the other from answering.
_OWN = {
    "/grpc.health.v1.Health/": Lane("health", 1, 64, Limits(idle_s=2.0)),
    "/grpc.reflection.v1alpha.ServerReflection/": Lane("reflection", 1, 8, Limits(idle_s=2.0)),
}


class LaneInterceptor(grpc.ServerInterceptor):
    """Sends every call to its lane. It stands before all other interceptors: gRPC sees the handler that it returns.

    Parameters
    ----------
    default
        For handlers that name none.
    """

    def __init__(self, default: Lane) -> None:
        self.default_pool = _Pool(default)
        self._pools = {default: self.default_pool}
        self._refusals = _Pool(Lane("refusals", 1, 0))  # never full: each is done as soon as it is begun
        self._watch = Watch()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the next handler with the pool that it runs in; called by one thread of gRPC's alone."""
        handler = continuation(details)
        if handler is None:
            return None
        behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        if getattr(behaviour, "experimental_non_blocking", False):
            return handler  # a watcher of health: it takes no thread
        pool = self._pool(next((lane for prefix, lane in _OWN.items() if details.method.startswith(prefix)), behaviour))
        if pool.full:
            return _handler(handler, _refusal(pool.lane), self._refusals)
        return _handler(handler, self._watch.watched(handler, behaviour, pool.lane.limits, details.method), pool)

    def close(self) -> None:
        """End the threads that wait for nothing."""
        self._watch.close()
        for pool in (*self._pools.values(), self._refusals):
            pool.shutdown(wait=False)

    def _pool(self, of: Lane | Callable[..., Any]) -> _Pool:
        lane = of if isinstance(of, Lane) else getattr(of, "lane", self.default_pool.lane)
        if lane not in self._pools:
            self._pools[lane] = _Pool(lane)
        return self._pools[lane]


class _Pool(ThreadPoolExecutor):
    """The threads of one lane; counts what runs and waits."""

    def __init__(self, lane: Lane) -> None:
        super().__init__(lane.workers, thread_name_prefix=lane.name)
        self.lane = lane
        self._held = 0
        self._lock_held = threading.Lock()

    @property
    def full(self) -> bool:
        """Whether a further call would be one too many."""
        return self._held >= self.lane.room

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As of any executor."""
        with self._lock_held:
            self._held += 1
        try:
            future = super().submit(fn, *args, **kwargs)
        except RuntimeError:
            self._leave(None)
            raise
        future.add_done_callback(self._leave)
        return future

    def _leave(self, _: object) -> None:
        with self._lock_held:
            self._held -= 1


def _handler(handler: Any, behaviour: Callable[..., Any], pool: ThreadPoolExecutor) -> Any:
    """Return a handler like ``handler`` that runs ``behaviour`` in ``pool``.

    On the wire a single request is a stream of one. Here all are streams: gRPC would wait for a single one on a thread
    of the pool, for ever, before any code of ours is called.
    """
    behaviour.experimental_thread_pool = pool  # type: ignore[attr-defined]
    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


def _refusal(lane: Lane) -> Callable[..., Any]:
    def refuse(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        context.set_trailing_metadata(((RETRY_KEY, str(int(1000 * _RETRY_S))),))
        context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"{lane.workers} calls of the kind {lane.name!r} run and {lane.max_waiting} wait already; ask again later",
        )

    return refuse
