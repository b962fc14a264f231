"""What the page shows, as JSON."""

from __future__ import annotations

from typing import Any

from kvboost import __version__
from kvboost.client.runtime_types import RuntimeInfo, TierAudit

from ..reuse_map.palette import REPAIRED, STYLES, hex_of
from .answers import runs
from .recent import Served
from .runtimes import public_name
from .serving import Gateway
from .watch import Sample

MAX_AGE_S = 1.0


def overview_of(gateway: Gateway) -> dict[str, Any]:
    """Return the whole page's figures; may ask the services, and take seconds if they do not answer."""
    sample = gateway.watch.latest(MAX_AGE_S)
    return {
        "version": __version__,
        "at_s": sample.at_s,
        "palette": palette(),
        "history": [
            {
                "at_s": point.at_s,
                "requests": point.requests,
                "tokens_by_tier": dict(point.tokens_by_tier),
                "bytes_by_namespace": dict(point.bytes_by_namespace),
                "audits": {address: [_setting(one) for one in audits] for address, audits in point.audits.items()},
            }
            for point in gateway.watch.history()
        ],
        "cache": {"address": gateway.watch.cache_address, **_cache(sample)},
        "runtimes": [{"address": address, **_runtime(info)} for address, info in sample.runtimes.items()],
        "in_flight": gateway.runtimes.in_flight,
        "requests": [request_of(served) for served in gateway.recent.all()],
    }


def palette() -> dict[str, Any]:
    """Return the colours and meanings of the tiers, as the reuse maps have them."""
    tiers = [
        {"tier": str(tier), "colour": hex_of(style.colour), "meaning": style.meaning} for tier, style in STYLES.items()
    ]
    return {"tiers": tiers, "repaired": hex_of(REPAIRED)}


def request_of(served: Served) -> dict[str, Any]:
    """Return one request; ``runs`` cover its prompt in order, ``repaired`` tokens are marked in them."""
    report = served.report
    return {
        "id": served.id,
        "at_s": served.at_s,
        "model": served.model,
        "runtime": served.runtime,
        "prompt_tokens": report.prompt_tokens,
        "reused_tokens": report.reused_tokens,
        "recomputed_tokens": report.recomputed_tokens,
        "new_tokens": served.new_tokens,
        "ttft_s": report.ttft_s,
        "duration_s": served.duration_s,
        "saved_s": report.saved_s,
        "fallback": report.fallback,
        "declined": list(report.declined),
        "runs": [{"tier": tier, "start": start, "end": end} for tier, start, end in runs(report)],
        "repaired": [[piece.span.start, piece.span.end] for piece in report.spans if piece.repaired],
        "has_map": bool(served.token_texts),
    }


def _cache(sample: Sample) -> dict[str, Any]:
    stats = sample.cache
    if stats is None:
        return {"up": False}
    # The cache knows a model by the fingerprint of its weights; runtimes know its name.
    names = {info.namespace.key: public_name(info.model) for info in sample.runtimes.values() if info}
    return {
        "up": True,
        "max_bytes": stats.max_bytes,
        "stored_bytes": stats.stored_bytes,
        "uptime_s": stats.uptime_s,
        "namespaces": [
            {
                "namespace": one.namespace,
                "tenant": one.tenant,
                "model": names.get(one.namespace, one.model),
                "chunks": one.chunks,
                "stored_bytes": one.stored_bytes,
                "evicted_chunks": one.evicted_chunks,
                "query_tokens": one.query_tokens,
                "hit_tokens": dict(one.hit_tokens),
            }
            for one in stats.namespaces
        ],
    }


def _runtime(info: RuntimeInfo | None) -> dict[str, Any]:
    if info is None:
        return {"up": False}
    return {
        "up": True,
        "model": public_name(info.model),
        "tenant": info.namespace.tenant,
        "version": info.version,
        "max_context_tokens": info.max_context_tokens,
        "tiers": [str(tier) for tier in info.tiers],
        "limits": list(info.limits),
        "cache_fault": info.cache_fault,
        "counters": dict(info.counters),
        "audits": [_audit(audit) for audit in info.audits],
    }


def _audit(audit: TierAudit) -> dict[str, Any]:
    low, high = audit.rate_bounds
    return {
        "tier": str(audit.tier),
        "audits": audit.audits,
        "violations": audit.violations,
        "mean_kl": audit.mean_kl,
        "threshold": audit.threshold,
        "recompute_ratio": audit.recompute_ratio,
        "rate_low": low,
        "rate_high": high,
        "off": audit.off,
    }


def _setting(audit: TierAudit) -> dict[str, Any]:
    """Return what the page draws over time."""
    return {
        "tier": str(audit.tier),
        "threshold": audit.threshold,
        "recompute_ratio": audit.recompute_ratio,
        "mean_kl": audit.mean_kl,
    }
