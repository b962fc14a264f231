"""From configuration to a cache that can be served."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvboost import __version__
from kvboost.build import build_embedder
from kvboost.config import CacheConfig, Config
from kvboost.errors import ConfigError
from kvboost.index import LocalCache
from kvboost.types import CacheInfo

from ..progress import step
from .leases import Leases

if TYPE_CHECKING:
    from kvboost.index.arena import Arena

_log = logging.getLogger(__name__)


# Shares of the budget that clients may pin in shared memory: one of them, and all together. What stays lets new
# chunks in whatever they do.
_LEASE_SHARE = 0.5
_LEASES_SHARE = 0.75


def build_served_cache(config: Config, arena: Arena | None = None) -> tuple[LocalCache, CacheInfo]:
    """Make the cache that ``[cache]`` and ``[embedder]`` describe, with its embedder loaded.

    A server that loaded its embedder at the first look-up would miss that look-up's deadline. With an ``arena``,
    which the cache closes, payloads lie there.
    """
    embedder = build_embedder(config.embedder, progress=step)
    if embedder is not None:
        with step("loading the embedder"):
            embedder.embed(["warm-up"])
    max_bytes, max_variants = config.cache.max_bytes, config.cache.max_variants
    cache = LocalCache(max_bytes, embedder, max_variants, allocator=arena)
    info = CacheInfo(__version__, max_bytes, embedder.name if embedder else "", max_variants)
    return cache, info


def build_leases(arena: Arena | None, max_bytes: int) -> Leases | None:
    """Return the leases of clients that read ``arena``, whose cache has a budget of ``max_bytes``."""
    return Leases(arena, int(max_bytes * _LEASE_SHARE), int(max_bytes * _LEASES_SHARE)) if arena is not None else None


def build_arena(config: CacheConfig) -> Arena | None:
    """Return the shared memory for payloads, or None where it is not wanted or this system has none.

    Raises
    ------
    ConfigError
        If ``arena_dir`` names a directory that cannot be used.
    """
    if config.arena_dir == "none" or not hasattr(os, "posix_fallocate"):
        return None
    # Only here: the modules that it needs are not on every system.
    from kvboost.index.arena import Arena

    try:
        return Arena(config.max_bytes, Path(config.arena_dir) if config.arena_dir else None)
    except ConfigError as error:
        if config.arena_dir:
            raise
        _log.warning("no shared memory for clients on this host, frames instead: %s", error)
        return None
