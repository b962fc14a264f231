"""Totals over all requests of one boosted model."""

from __future__ import annotations

import threading

from kvboost.reuse import ReuseReport


class ReuseCounters:
    """Totals over all requests of one boosted model; safe to read and write from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Add ``amount`` to the counter ``name``."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + amount

    def count(self, report: ReuseReport) -> None:
        """Add one request."""
        self.add("requests")
        self.add("prompt_tokens", report.prompt_tokens)
        self.add("recomputed_tokens", report.recomputed_tokens)
        for tier, tokens in report.tokens_by_tier.items():
            self.add(f"tokens_{tier}", tokens)
        if report.fallback is not None:
            self.add("fallbacks")

    def snapshot(self) -> dict[str, int]:
        """Return a copy of all counters."""
        with self._lock:
            return dict(self._counts)
