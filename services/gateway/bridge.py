"""From an iterator that blocks, in a thread of its own, to an asynchronous one that can be given up at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, TypeVar

E = TypeVar("E")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""Gives the next message of an HTTP request, as ASGI has it."""


class CallerGoneError(Exception):
    """The HTTP client closed its connection; nobody is there to be answered."""


async def in_thread(
    events: Callable[[], Iterator[E]], stop: Callable[[], None], executor: Executor
) -> AsyncGenerator[E, None]:
    """Yield what ``events`` yields, run in a thread of ``executor``.

    Parameters
    ----------
    stop
        Called when the caller gives up before the end: it must make the blocked iterator end, from any thread.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[E | BaseException | None] = asyncio.Queue()

    def send(item: E | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def pump() -> None:
        try:
            for event in events():
                send(event)
        except BaseException as error:  # noqa: BLE001
            send(error)
        else:
            send(None)

    executor.submit(pump)
    ended = False
    try:
        while True:
            item = await queue.get()
            if item is None or isinstance(item, BaseException):
                ended = True
                if item is None:
                    return
                raise item
            yield item
    finally:
        if not ended:
            stop()


async def while_connected(events: AsyncGenerator[E, None], receive: Receive) -> AsyncGenerator[E, None]:
    """Yield ``events`` for as long as the HTTP client is there; then close them.

    Raises
    ------
    CallerGoneError
        If it went away before the end.
    """
    gone = asyncio.ensure_future(_gone(receive))
    pending: asyncio.Task[E] | None = None
    try:
        while True:
            pending = asyncio.create_task(_next(events))
            await asyncio.wait({pending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not pending.done():
                raise CallerGoneError
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            yield event
    finally:
        gone.cancel()
        if pending is not None and not pending.done():
            pending.cancel()
            await asyncio.wait({pending})
        await events.aclose()


async def _next(events: AsyncIterator[E]) -> E:
    return await anext(events)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
