"""What a cache says of itself, of its contents and of a put, to messages of ``kvboost.v1`` and back, in pairs."""

from __future__ import annotations

from kvboost.types import CacheInfo, CacheStats, NamespaceStats, PutReceipt
from kvboost.v1 import cache_pb2 as pb


def receipt_to_proto(receipt: PutReceipt) -> pb.PutReceipt:
    """Return the message for ``receipt``."""
    return pb.PutReceipt(
        stored=receipt.stored,
        duplicate=receipt.duplicate,
        over_variants=receipt.over_variants,
        too_large=receipt.too_large,
    )


def receipt_from_proto(message: pb.PutReceipt) -> PutReceipt:
    """Return the receipt of ``message``."""
    return PutReceipt(message.stored, message.duplicate, message.over_variants, message.too_large)


def info_to_proto(info: CacheInfo) -> pb.CacheInfo:
    """Return the message for ``info``."""
    return pb.CacheInfo(
        version=info.version, max_bytes=info.max_bytes, embedder=info.embedder, max_variants=info.max_variants
    )


def info_from_proto(message: pb.CacheInfo) -> CacheInfo:
    """Return the info of ``message``."""
    return CacheInfo(message.version, message.max_bytes, message.embedder, message.max_variants)


def namespace_stats_to_proto(stats: NamespaceStats) -> pb.NamespaceStats:
    """Return the message for ``stats``."""
    return pb.NamespaceStats(
        namespace=stats.namespace,
        tenant=stats.tenant,
        model=stats.model,
        chunks=stats.chunks,
        stored_bytes=stats.stored_bytes,
        vectors=stats.vectors,
        queries=stats.queries,
        query_tokens=stats.query_tokens,
        hit_tokens=stats.hit_tokens,
        evicted_chunks=stats.evicted_chunks,
        exact_bytes=stats.exact_bytes,
        index_bytes=stats.index_bytes,
        non_finite_chunks=stats.non_finite_chunks,
    )


def namespace_stats_from_proto(message: pb.NamespaceStats) -> NamespaceStats:
    """Return the figures of ``message``."""
    return NamespaceStats(
        namespace=message.namespace,
        tenant=message.tenant,
        model=message.model,
        chunks=message.chunks,
        stored_bytes=message.stored_bytes,
        vectors=message.vectors,
        queries=message.queries,
        query_tokens=message.query_tokens,
        hit_tokens=dict(message.hit_tokens),
        evicted_chunks=message.evicted_chunks,
        exact_bytes=message.exact_bytes,
        index_bytes=message.index_bytes,
        non_finite_chunks=message.non_finite_chunks,
    )


def stats_to_proto(stats: CacheStats) -> pb.CacheStats:
    """Return the message for ``stats``."""
    return pb.CacheStats(
        max_bytes=stats.max_bytes,
        stored_bytes=stats.stored_bytes,
        uptime_s=stats.uptime_s,
        namespaces=[namespace_stats_to_proto(n) for n in stats.namespaces],
        index_bytes=stats.index_bytes,
    )


def stats_from_proto(message: pb.CacheStats) -> CacheStats:
    """Return the figures of ``message``."""
    return CacheStats(
        max_bytes=message.max_bytes,
        stored_bytes=message.stored_bytes,
        uptime_s=message.uptime_s,
        namespaces=tuple(namespace_stats_from_proto(n) for n in message.namespaces),
        index_bytes=message.index_bytes,
    )
