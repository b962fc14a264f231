"""Chunks to matches, and the store of K/V bytes: the cache service's core, in process."""

from kvboost.extras import require

require("cache", "kvboost.index")

from kvboost.index.cache import LocalCache
from kvboost.index.embedder import SentenceTransformerEmbedder

__all__ = ["LocalCache", "SentenceTransformerEmbedder"]
