"""A listener that hears of one end, and whose own faults are its own."""

from __future__ import annotations

import logging

from kvboost.runtime.batching.request import Ended, Listener
from kvboost.runtime.control.counters import ReuseCounters

_log = logging.getLogger(__name__)


class Told:
    """Passes on what a listener is to hear: nothing after the end, and the end once.

    What the listener raises while it takes a token ends its own answer. What it raises when it hears of the end, or is
    asked whether it is still there, has nobody to go to: it is logged, and counted as ``listener_failures``.
    """

    def __init__(self, listener: Listener, counters: ReuseCounters) -> None:
        self._listener = listener
        self._counters = counters
        self._over = False

    def gone(self) -> bool:
        """Return whether nobody waits for the answer any more; so does nobody who cannot say."""
        try:
            return self._listener.gone()
        except Exception:  # noqa: BLE001 - whatever it is, it is this listener's own
            self._note()
            return True

    def on_token(self, token_id: int) -> bool:
        """Pass on a token; its errors are raised."""
        return self._listener.on_token(token_id)

    def on_end(self, ended: Ended) -> None:
        """Pass on the end."""
        if self._is_last():
            try:
                self._listener.on_end(ended)
            except Exception:  # noqa: BLE001 - as above
                self._note()

    def on_error(self, error: BaseException) -> None:
        """Pass on the error that ends the answer."""
        if self._is_last():
            try:
                self._listener.on_error(error)
            except Exception:  # noqa: BLE001 - as above
                self._note()

    def _is_last(self) -> bool:
        over, self._over = self._over, True
        return not over

    def _note(self) -> None:
        self._counters.add("listener_failures")
        _log.exception("a listener of the batch failed")
