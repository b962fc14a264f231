"""What a gRPC client imports: generated messages, their codec, and :class:`CacheClient`. No torch, no faiss."""

from kvboost.client.cache_client import CacheClient

__all__ = ["CacheClient"]
