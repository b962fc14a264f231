"""Figures of a cache service in words: one look at it, and what happened between two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from kvboost.types import CacheStats, NamespaceStats

_BAR_CELLS = 30


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two looks, for each second.

    Attributes
    ----------
    queries
        Look-ups.
    query_tokens
        Prompt tokens that were looked up.
    hit_tokens
        Those that found a donor, by tier; tiers without any are left out.
    evicted_chunks
        Chunks that made room.
    stored_bytes
        Growth of what is stored; negative where it shrank.
    """

    queries: float
    query_tokens: float
    hit_tokens: Mapping[str, float]
    evicted_chunks: float
    stored_bytes: float


def rates(before: CacheStats, now: CacheStats) -> Rates | None:
    """Return what happened per second; None where the cache has started anew, or no time has passed."""
    seconds = now.uptime_s - before.uptime_s
    if seconds <= 0.0:
        return None
    earlier = {one.namespace: one for one in before.namespaces}
    each = [_between(earlier.get(one.namespace), one) for one in now.namespaces]
    tiers = dict.fromkeys(tier for one in each for tier in one.hit_tokens)
    hits = {tier: sum(one.hit_tokens.get(tier, 0) for one in each) / seconds for tier in tiers}
    return Rates(
        queries=sum(one.queries for one in each) / seconds,
        query_tokens=sum(one.query_tokens for one in each) / seconds,
        hit_tokens={tier: rate for tier, rate in hits.items() if rate},
        evicted_chunks=sum(one.evicted_chunks for one in each) / seconds,
        stored_bytes=(now.stored_bytes - before.stored_bytes) / seconds,
    )


def as_record(stats: CacheStats, happened: Rates | None) -> dict[str, object]:
    """Return one look as a script reads it, with ``rates`` since the look before, or None."""
    return {**asdict(stats), "rates": None if happened is None else asdict(happened)}


def as_text(stats: CacheStats) -> str:
    """Return one look in several lines."""
    return "\n".join([_head(stats), *(line for one in stats.namespaces for line in ("", *_namespace(one)))])


def as_view(stats: CacheStats, happened: Rates | None) -> str:
    """Return one look with a bar of the memory in use, and what happened since the look before."""
    full = min(round(_BAR_CELLS * stats.stored_bytes / stats.max_bytes), _BAR_CELLS)
    lines = [_head(stats), f"[{'#' * full}{'.' * (_BAR_CELLS - full)}]", f"now: {as_line(happened)}"]
    return "\n".join([*lines, *(line for one in stats.namespaces for line in ("", *_namespace(one)))])


def as_line(happened: Rates | None) -> str:
    """Return what happened since the look before in one line."""
    if happened is None:
        return "nothing to compare with yet"
    tokens = happened.query_tokens
    return (
        f"{happened.queries:.1f} look-ups/s of {tokens:.0f} tokens/s: {_shares(happened.hit_tokens, tokens)}; "
        f"{happened.evicted_chunks:.1f} evicted/s, {_growth(happened.stored_bytes)}/s"
    )


def as_plain_line(stats: CacheStats, happened: Rates | None) -> str:
    """Return one look in one line, for a log."""
    share = stats.stored_bytes / stats.max_bytes
    return f"{size(stats.stored_bytes)} ({share:.1%}); {as_line(happened)}"


def size(nbytes: int) -> str:
    """Return a number of bytes as it is read best."""
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= unit_bytes:
            return f"{nbytes / unit_bytes:.1f} {unit}"
    return f"{nbytes} B"


def _between(before: NamespaceStats | None, now: NamespaceStats) -> NamespaceStats:
    """Return the counters' growth; all they count for a namespace that is new, or was dropped and opened anew."""
    if before is None or now.queries < before.queries or now.evicted_chunks < before.evicted_chunks:
        return now
    return NamespaceStats(
        namespace=now.namespace,
        tenant=now.tenant,
        model=now.model,
        chunks=now.chunks - before.chunks,
        stored_bytes=now.stored_bytes - before.stored_bytes,
        vectors=now.vectors - before.vectors,
        queries=now.queries - before.queries,
        query_tokens=now.query_tokens - before.query_tokens,
        hit_tokens={tier: tokens - before.hit_tokens.get(tier, 0) for tier, tokens in now.hit_tokens.items()},
        evicted_chunks=now.evicted_chunks - before.evicted_chunks,
        exact_bytes=now.exact_bytes - before.exact_bytes,
        index_bytes=now.index_bytes - before.index_bytes,
        non_finite_chunks=now.non_finite_chunks - before.non_finite_chunks,
    )


def _head(stats: CacheStats) -> str:
    share = (stats.stored_bytes + stats.index_bytes) / stats.max_bytes
    held = f"stored {size(stats.stored_bytes)}, tables {size(stats.index_bytes)}"
    return f"{held}, of {size(stats.max_bytes)} ({share:.1%}), up {stats.uptime_s:.0f} s"


def _namespace(one: NamespaceStats) -> Iterable[str]:
    tenant = f", tenant {one.tenant}" if one.tenant else ""
    yield f"{one.model}{tenant} ({one.namespace})"
    yield (
        f"  chunks   {one.chunks} ({size(one.stored_bytes)}), {one.vectors} with a vector, {one.evicted_chunks} evicted"
    )
    yield f"  queries  {one.queries} of {one.query_tokens} tokens: {_shares(one.hit_tokens, one.query_tokens)}"


def _shares(hits: Mapping[str, float], tokens: float) -> str:
    return ", ".join(f"{found / tokens:.1%} {tier}" for tier, found in hits.items() if found) or "no hits"


def _growth(bytes_per_s: float) -> str:
    return ("-" if bytes_per_s < 0 else "+") + size(abs(round(bytes_per_s)))
