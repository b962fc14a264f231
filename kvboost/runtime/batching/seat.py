"""A place among the requests under way."""

from __future__ import annotations

from kvboost.runtime.batching.budget import ByteBudget
from kvboost.runtime.batching.request import BatchRequest
from kvboost.runtime.batching.waiting import WaitingList


class Seat:
    """What one request takes while it is under way: one of the busy, and its bytes. Given back once, whoever asks.

    Parameters
    ----------
    request
        None for work without K/V of its own.
    """

    def __init__(self, waiting: WaitingList, budget: ByteBudget, request: BatchRequest | None) -> None:
        self._waiting, self._budget, self._request = waiting, budget, request
        self._left = False
        if request is not None:
            budget.take(request)

    def leave(self) -> None:
        """Give it back; nothing happens the second time."""
        if self._left:
            return
        self._left = True
        if self._request is not None:
            self._budget.give(self._request)
        self._waiting.done()
