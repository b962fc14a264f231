"""The cache service: any :class:`~kvboost.protocols.ChunkCache` behind gRPC."""

from .servicer import SERVICE_NAME, CacheServicer

__all__ = ["SERVICE_NAME", "CacheServicer"]
