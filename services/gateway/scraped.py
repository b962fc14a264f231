"""What the cache and the runtimes say of themselves, for Prometheus.

These figures are also counted where the gateway is not asked: other clients of the same cache and runtimes are in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvboost.client.runtime_types import RuntimeInfo
from kvboost.types import CacheStats, NamespaceStats, Tier

from .watch import Watch

MAX_AGE_S = 1.0
_NAMESPACE = ("namespace", "tenant", "model")
_RUNTIME = ("runtime",)
Rows = Sequence[tuple[Sequence[str], float]]
_OWN_METRIC = frozenset(
    {"requests", "prompt_tokens", "recomputed_tokens", "fallbacks", "put_failures", *(f"tokens_{t}" for t in Tier)}
)


class ServiceCollector(Collector):
    """Asks the services when Prometheus asks."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def describe(self) -> Iterator[Metric]:
        """Name nothing beforehand: at registration no service is asked."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield every family, also those that have no sample at present."""
        sample = self._watch.latest(MAX_AGE_S)
        if self._watch.cache_address:
            yield from _cache(sample.cache, self._watch.cache_address)
        yield from _runtimes(sample.runtimes)


def _cache(stats: CacheStats | None, address: str) -> Iterator[Metric]:
    yield _gauge("cache_up", "Whether the cache service answers.", ["cache"], [([address], float(stats is not None))])
    whole = [] if stats is None else [stats]
    yield _gauge(
        "cache_max_bytes", "Byte budget for K/V, tables and vectors.", [], [([], float(s.max_bytes)) for s in whole]
    )
    yield _gauge("cache_stored_bytes", "Bytes of K/V held.", [], [([], float(s.stored_bytes)) for s in whole])
    yield _gauge(
        "cache_index_bytes", "About what tables and vectors take.", [], [([], float(s.index_bytes)) for s in whole]
    )
    yield _gauge("cache_uptime_seconds", "Since the cache started.", [], [([], s.uptime_s) for s in whole])
    namespaces = stats.namespaces if stats else ()

    def each(value: Callable[[NamespaceStats], float]) -> list[tuple[list[str], float]]:
        return [([n.namespace, n.tenant, n.model], value(n)) for n in namespaces]

    yield _gauge("cache_namespace_bytes", "Bytes of K/V held.", _NAMESPACE, each(lambda n: n.stored_bytes))
    by_tier = [
        ([n.namespace, n.tenant, n.model, tier], float(held))
        for n in namespaces
        for tier, held in (("prefix", n.exact_bytes), ("exact", n.stored_bytes - n.exact_bytes))
    ]
    labels = (*_NAMESPACE, "tier")
    yield _gauge("cache_tier_bytes", "Bytes of K/V held, by the strictest tier that may lend them.", labels, by_tier)
    yield _gauge("cache_namespace_chunks", "Chunks held.", _NAMESPACE, each(lambda n: n.chunks))
    yield _gauge("cache_namespace_vectors", "Vectors in the index.", _NAMESPACE, each(lambda n: n.vectors))
    yield _counter("cache_queries", "Look-ups answered.", _NAMESPACE, each(lambda n: n.queries))
    yield _counter("cache_query_tokens", "Prompt tokens looked up.", _NAMESPACE, each(lambda n: n.query_tokens))
    yield _counter("cache_evicted_chunks", "Chunks evicted.", _NAMESPACE, each(lambda n: n.evicted_chunks))
    refused = each(lambda n: n.non_finite_chunks)
    yield _counter("cache_non_finite_chunks", "Chunks refused for K/V that are not finite.", _NAMESPACE, refused)
    hits = [
        ([n.namespace, n.tenant, n.model, tier], float(tokens))
        for n in namespaces
        for tier, tokens in n.hit_tokens.items()
    ]
    yield _counter("cache_hit_tokens", "Prompt tokens that found a donor, by tier.", labels, hits)


def _runtimes(infos: Mapping[str, RuntimeInfo | None]) -> Iterator[Metric]:
    yield _gauge(
        "runtime_up",
        "Whether the runtime answers.",
        _RUNTIME,
        [([address], float(info is not None)) for address, info in infos.items()],
    )
    known = {address: info for address, info in infos.items() if info is not None}
    states = [
        ([address, state], float(count))
        for address, info in known.items()
        if (batch := info.batch) is not None
        for state, count in (("running", batch.running), ("waiting", batch.waiting))
    ]
    yield _gauge("runtime_batch_requests", "Requests in the batch, and waiting for it.", (*_RUNTIME, "state"), states)
    answers = [([address], float(not info.cache_fault)) for address, info in known.items()]
    yield _gauge("runtime_cache_answers", "Whether the runtime's cache answers it.", _RUNTIME, answers)
    for name, text in (
        ("requests", "Requests served with reuse."),
        ("recomputed_tokens", "Tokens with a donor that repair computed anew."),
        ("fallbacks", "Requests that fell back to full prefill."),
        ("put_failures", "Chunks that could not be stored."),
    ):
        rows = [([address], float(info.counters.get(name, 0))) for address, info in known.items()]
        yield _counter(f"runtime_{name}", text, _RUNTIME, rows)
    tokens = [
        ([address, info.namespace.tenant, str(tier)], float(info.counters.get(f"tokens_{tier}", 0)))
        for address, info in known.items()
        for tier in Tier
    ]
    yield _counter("runtime_tokens", "Prompt tokens, by tier.", (*_RUNTIME, "tenant", "tier"), tokens)
    events = [
        ([address, name], float(count))
        for address, info in known.items()
        for name, count in info.counters.items()
        if name not in _OWN_METRIC
    ]
    yield _counter("runtime_events", "Everything else that the runtime counts.", (*_RUNTIME, "event"), events)
    yield from _audits(known)


def _audits(known: dict[str, RuntimeInfo]) -> Iterator[Metric]:
    labels = (*_RUNTIME, "tier")
    rows = [([address, str(audit.tier)], audit) for address, info in known.items() for audit in info.audits]
    yield _counter("audits", "Audited requests.", labels, [(at, float(a.audits)) for at, a in rows])
    yield _counter(
        "audit_violations", "Audits whose loss exceeded max_kl.", labels, [(at, float(a.violations)) for at, a in rows]
    )
    yield _gauge(
        "audit_kl_nats",
        "Mean KL(full prefill || reuse) of the first token, newest audits.",
        labels,
        [(at, a.mean_kl) for at, a in rows if a.mean_kl is not None],
    )
    yield _gauge("tier_threshold", "Least similarity at present.", labels, [(at, a.threshold) for at, a in rows])
    yield _gauge(
        "tier_recompute_ratio", "Repair's budget at present.", labels, [(at, a.recompute_ratio) for at, a in rows]
    )
    yield _gauge("tier_off", "Whether the audit switched it off.", labels, [(at, float(a.off)) for at, a in rows])


def _gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    family = GaugeMetricFamily(f"kvboost_{name}", text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    family = CounterMetricFamily(f"kvboost_{name}", text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family
