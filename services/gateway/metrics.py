"""Figures of the requests that this gateway served, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvboost.client.runtime_types import Finish

from .answers import loosest_tier

# From a cached chat turn on a GPU to a cold prompt of thousands of tokens on a CPU.
_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
_ANSWER_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
_WHO = ("model", "tenant")


@dataclass(frozen=True, slots=True)
class Who:
    """Whom a request is counted for: the model's public name and the runtime's tenant."""

    model: str
    tenant: str

    @property
    def labels(self) -> tuple[str, str]:
        """The values of the labels that every request has."""
        return (self.model, self.tenant)


class RequestMetrics:
    """Counts requests; ``registry`` holds the figures of this gateway and of no other.

    Parameters
    ----------
    in_flight
        Tells how many requests are being served.
    """

    def __init__(self, in_flight: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"kvboost_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"kvboost_{name}", text, labels, buckets=buckets, registry=self.registry)

        self._http = counter("http_requests", "HTTP requests answered, by path and status.", "path", "status")
        self._answers = counter("answers", "Answers asked of runtimes, by what became of them.", *_WHO, "outcome")
        self._prompt = counter("prompt_tokens", "Prompt tokens, by where their K/V came from.", *_WHO, "tier")
        self._recomputed = counter("recomputed_tokens", "Tokens with a donor that repair computed anew.", *_WHO)
        self._generated = counter("generated_tokens", "Answer tokens.", *_WHO)
        self._saved = counter("saved_seconds", "Seconds of prefill that reuse saved, as estimated.", *_WHO)
        self._overspent = counter("overspent_seconds", "Seconds that reuse cost beyond what it saved.", *_WHO)
        self._stages = counter("stage_seconds", "Seconds before the model's own pass, by stage.", *_WHO, "stage")
        self._declined = counter("declined", "Reasons why something was not reused, counted.", *_WHO)
        self._fallbacks = counter("fallbacks", "Requests that fell back to full prefill.", *_WHO)
        self._ttft = histogram(
            "ttft_seconds",
            "Time to first token at the runtime, waiting included, by the loosest tier that lent tokens.",
            _TTFT_BUCKETS_S,
            *_WHO,
            "tier",
        )
        self._duration = histogram("answer_seconds", "From request to last token.", _ANSWER_BUCKETS_S, *_WHO)
        gauge = Gauge("kvboost_requests_in_flight", "Requests that are being served.", registry=self.registry)
        gauge.set_function(in_flight)

    def count_http(self, path: str, status: int) -> None:
        """Count an HTTP request."""
        self._http.labels(path, str(status)).inc()

    def count_answer(self, who: Who, outcome: str, duration_s: float) -> None:
        """Count what became of an answer: ``ok``, ``error`` or ``cancelled``."""
        self._answers.labels(*who.labels, outcome).inc()
        if outcome == "ok":
            self._duration.labels(*who.labels).observe(duration_s)

    def count_finish(self, who: Who, finish: Finish) -> None:
        """Count what an answer reused, and what it cost."""
        report, labels = finish.report, who.labels
        for tier, tokens in report.tokens_by_tier.items():
            self._prompt.labels(*labels, str(tier)).inc(tokens)
        self._recomputed.labels(*labels).inc(report.recomputed_tokens)
        self._generated.labels(*labels).inc(finish.new_tokens)
        saved_s = report.saved_s or 0.0
        # Both, or the difference of the two would be nothing until each has happened.
        self._saved.labels(*labels).inc(max(saved_s, 0.0))
        self._overspent.labels(*labels).inc(max(-saved_s, 0.0))
        for stage, seconds in report.stages_s.items():
            self._stages.labels(*labels, stage).inc(seconds)
        self._declined.labels(*labels).inc(len(report.declined))
        self._fallbacks.labels(*labels).inc(report.fallback is not None)
        self._ttft.labels(*labels, str(loosest_tier(report))).observe(report.ttft_s)
