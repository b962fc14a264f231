"""How long the cache work of one request may take, all its calls together.

Every call of a client has a deadline of its own. One request makes several; inside :func:`within` each of them gets
what is left of the request's time, if that is less.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from kvboost.errors import InputError

_END_S: ContextVar[float] = ContextVar("kvboost_deadline", default=math.inf)


@contextmanager
def within(budget_s: float) -> Iterator[None]:
    """Let the calls that this thread begins inside the block take ``budget_s`` seconds together, at most.

    Blocks may stand in each other: the earlier end holds. The deadline goes where the thread's context goes
    (``contextvars.copy_context``); a thread that was started without it has none. A call that finds no time left
    raises what it raises when its server does not answer. A stream's deadline is fixed when its first item is asked
    for, and holds for all of it.

    Raises
    ------
    InputError
        If ``budget_s`` is no number, or negative.
    """
    if not budget_s >= 0:
        raise InputError(f"budget_s {budget_s} must not be negative: it is a time in seconds")
    before = _END_S.set(min(_END_S.get(), time.monotonic() + budget_s))
    try:
        yield
    finally:
        _END_S.reset(before)


def remaining_s() -> float:
    """Return the seconds that are left inside :func:`within`; infinite outside, never negative."""
    return max(0.0, _END_S.get() - time.monotonic())
