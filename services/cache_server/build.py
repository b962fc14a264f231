"""From configuration to a cache that can be served."""

from __future__ import annotations

from kvboost import __version__
from kvboost.build import build_embedder
from kvboost.config import Config
from kvboost.index import LocalCache
from kvboost.types import CacheInfo

from ..progress import step


def build_served_cache(config: Config) -> tuple[LocalCache, CacheInfo]:
    """Make the cache that ``[cache]`` and ``[embedder]`` describe, with its embedder loaded.

    A server that loaded its embedder at the first look-up would miss that look-up's deadline.
    """
    embedder = build_embedder(config.embedder, progress=step)
    if embedder is not None:
        with step("loading the embedder"):
            embedder.embed(["warm-up"])
    cache = LocalCache(config.cache.max_bytes, embedder, config.cache.max_variants)
    name = embedder.name if embedder else ""
    return cache, CacheInfo(__version__, config.cache.max_bytes, name, config.cache.max_variants)
