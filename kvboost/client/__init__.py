"""What a caller of the services needs: the two clients, and what they are asked and answer. No torch, no faiss."""

from kvboost.client.cache_client import CacheClient
from kvboost.client.runtime_client import RuntimeClient

__all__ = ["CacheClient", "RuntimeClient"]
