"""Whether K/V come through shared memory or as frames: one place decides."""

from __future__ import annotations

import logging
import threading
import time

from kvboost.client.lease import Lease, LeaseRefusedError, Opener
from kvboost.deadline import remaining_s
from kvboost.errors import CacheUnavailableError
from kvboost.origin import Origin

_log = logging.getLogger(__name__)

RETRY_S = 1.0
REFUSED_RETRY_S = 60.0
_OPEN_TIMEOUT_S = 1.0


class LeaseKeeper:
    """Keeps one lease while the server grants it, and asks again after a while when it does not.

    Parameters
    ----------
    opener
        Starts the call.
    wanted
        False never asks.
    """

    def __init__(self, opener: Opener, wanted: bool) -> None:
        self._opener = opener
        self._origin = Origin()
        self._wanted = wanted
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._not_before_s = 0.0

    def current(self) -> Lease | None:
        """Return a lease that lasts, or None: then frames are the way."""
        if not self._wanted or self._origin.refusal("the lease"):
            return None
        with self._lock:
            lease = self._lease
            if lease is not None and lease.alive:
                return lease
            if lease is not None:
                self._lease = None
                _log.debug("the lease ended; frames for now")
            if time.monotonic() >= self._not_before_s:
                self._lease = self._open()
            return self._lease

    def drop(self, lease: Lease, why: Exception) -> None:
        """Give up a lease that failed for one reader; others may still read what it pins."""
        lease.retire()
        with self._lock:
            if self._lease is lease:
                self._lease = None
            self._not_before_s = time.monotonic() + RETRY_S
        _log.debug("shared memory failed, frames instead: %s", why)

    def close(self) -> None:
        """End the lease; in a forked child it is left to its parent."""
        if self._origin.refusal("the lease"):
            return
        with self._lock:
            self._wanted = False
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    def _open(self) -> Lease | None:
        try:
            return Lease(self._opener, min(_OPEN_TIMEOUT_S, remaining_s()))
        except CacheUnavailableError as error:
            _log.debug("no shared memory, frames instead: %s", error)
            wait_s = REFUSED_RETRY_S if isinstance(error, LeaseRefusedError) else RETRY_S
            self._not_before_s = time.monotonic() + wait_s
            return None
