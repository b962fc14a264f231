"""The nouns of KVBoost: frozen values that cross between rooms.

Nothing here knows torch, faiss or grpc. Token positions are counted from 0 in the prompt without padding;
spans are half-open.
"""

from kvboost.types.figures import CacheInfo, CacheStats, NamespaceStats
from kvboost.types.layout import DTYPE_BYTES, KVLayout, Namespace
from kvboost.types.matching import Chunk, Donor, Match, MatchQuery, MatchResult, Segmentation, check_chunks
from kvboost.types.spans import Handover, Span, Tier
from kvboost.types.transfer import ChunkKV, ChunkPart, ChunkVerdict, NewChunk, PutReceipt, PutRequest

__all__ = [
    "DTYPE_BYTES",
    "CacheInfo",
    "CacheStats",
    "Chunk",
    "ChunkKV",
    "ChunkPart",
    "ChunkVerdict",
    "Donor",
    "Handover",
    "KVLayout",
    "Match",
    "MatchQuery",
    "MatchResult",
    "Namespace",
    "NamespaceStats",
    "NewChunk",
    "PutReceipt",
    "PutRequest",
    "Segmentation",
    "Span",
    "Tier",
    "check_chunks",
]
