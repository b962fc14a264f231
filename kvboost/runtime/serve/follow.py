"""Following a model that changes: each of its namespaces is opened in the cache before anything is looked up there."""

from __future__ import annotations

import threading
from contextlib import suppress

from kvboost.errors import KVBoostError
from kvboost.protocols import ChunkCache
from kvboost.runtime.model.identity import Identity, Standing
from kvboost.types import Namespace

KEPT_NAMESPACES = 8


class Follower:
    """Knows where K/V of a model belong, and that the cache knows it too. Safe to use from several threads.

    Parameters
    ----------
    opened
        The namespace that was opened when the model was boosted.
    drops
        Whether to drop all but the eight namespaces used last: a model in training leaves one behind at every step.
        For a cache that nobody else uses.
    """

    def __init__(self, identity: Identity, cache: ChunkCache, opened: Namespace, drops: bool) -> None:
        self._identity = identity
        self._cache = cache
        self._drops = drops
        self._lock = threading.Lock()
        self._opened = {opened.key: None}

    def now(self) -> Standing:
        """Return where the model stands; where the cache does not take its namespace, that is the reason against it."""
        standing = self._identity.now()
        if standing.reason:
            return standing
        try:
            self._open(standing.namespace)
        except KVBoostError as error:
            reason = f"the model changed since boost(), and the cache did not take its new namespace: {error}"
            return Standing(standing.namespace, reason)
        return standing

    def holds(self, namespace: str) -> bool:
        """Return whether K/V that the model computes now belong to the namespace with this key."""
        return self._identity.holds(namespace)

    def _open(self, namespace: Namespace) -> None:
        with self._lock:
            if namespace.key not in self._opened:
                self._cache.open(namespace)
            self._opened.pop(namespace.key, None)
            self._opened[namespace.key] = None  # the latest
            while self._drops and len(self._opened) > KEPT_NAMESPACES:
                oldest = next(iter(self._opened))
                del self._opened[oldest]
                with suppress(KVBoostError):  # it costs room until it is evicted
                    self._cache.drop(oldest)
