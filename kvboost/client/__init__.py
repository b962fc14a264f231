"""What a gRPC client imports: generated messages, their codec, and the clients. No torch, no faiss."""

from kvboost.client.cache_client import CacheClient
from kvboost.client.runtime_client import RuntimeClient

__all__ = ["CacheClient", "RuntimeClient"]
