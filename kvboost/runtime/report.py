"""What a request reused, and what it cost."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvboost.runtime.plan import Plan
from kvboost.types import Span, Tier


@dataclass(frozen=True, slots=True)
class TierSpan:
    """Prompt tokens of one tier.

    Attributes
    ----------
    similarity
        1.0 unless an embedding nominated the donor.
    repaired
        Whether the tokens had a donor and were recomputed all the same; the tier is then ``computed``.
    """

    span: Span
    tier: Tier
    similarity: float = 1.0
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """One request.

    Attributes
    ----------
    prompt_tokens
        Tokens of the prompt, without padding.
    tokens_by_tier
        Tokens whose K/V came from the cache, by tier; everything that this request computed, repair
        included, is under ``computed``. Sums to ``prompt_tokens``.
    recomputed_tokens
        Tokens that had a donor and were recomputed all the same; part of ``computed``.
    recompute_ratio
        Repair's token passes through all layers, selection passes included, per token that had a donor.
    ttft_s
        From the call to the first token's logits, everything included.
    stages_s
        Where the time before the model's own pass went, by stage.
    declined
        Why something that could have been reused was not.
    fallback
        The fault that made the request fall back to full prefill, or None.
    similarity
        Lowest similarity of a donor that lent tokens; 1.0 if none was nominated by embedding.
    spans
        The prompt in order, by tier.
    rows
        The reports of the rows of a batch; empty for a single prompt.
    """

    prompt_tokens: int
    tokens_by_tier: Mapping[Tier, int]
    recomputed_tokens: int = 0
    recompute_ratio: float = 0.0
    ttft_s: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)
    declined: tuple[str, ...] = ()
    fallback: str | None = None
    similarity: float = 1.0
    spans: tuple[TierSpan, ...] = ()
    rows: tuple[ReuseReport, ...] = ()

    @property
    def reused_tokens(self) -> int:
        """Tokens whose K/V came from the cache and were not recomputed."""
        return self.prompt_tokens - self.tokens_by_tier.get(Tier.COMPUTED, 0)

    @property
    def lossless(self) -> bool:
        """Whether the K/V are those of an ordinary prefill."""
        return all(tier in (Tier.PREFIX, Tier.COMPUTED) or n == 0 for tier, n in self.tokens_by_tier.items())


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


def tier_spans(plan: Plan, recomputed: Sequence[int]) -> tuple[TierSpan, ...]:
    """Return the prompt in order by tier, recomputed tokens as computed and marked."""
    tiers: list[tuple[Tier, float, bool]] = [(Tier.COMPUTED, 1.0, False)] * plan.num_tokens
    for piece in plan.reuse:
        for position in range(piece.target.start, piece.target.end):
            tiers[position] = (piece.tier, piece.similarity, False)
    for position in recomputed:
        tiers[position] = (Tier.COMPUTED, 1.0, True)
    spans: list[TierSpan] = []
    start = 0
    for position in range(1, plan.num_tokens + 1):
        if position == plan.num_tokens or tiers[position] != tiers[start]:
            spans.append(TierSpan(Span(start, position), *tiers[start]))
            start = position
    return tuple(spans)


def count_tiers(spans: Sequence[TierSpan]) -> dict[Tier, int]:
    """Return tokens by tier, every tier named."""
    counts = dict.fromkeys(Tier, 0)
    for piece in spans:
        counts[piece.tier] += len(piece.span)
    return counts


def merge(rows: Sequence[ReuseReport], ttft_s: float) -> ReuseReport:
    """Return the report of a batch: sums over its rows."""
    tiers = {tier: sum(row.tokens_by_tier.get(tier, 0) for row in rows) for tier in Tier}
    donated = sum(row.reused_tokens + row.recomputed_tokens for row in rows)
    spent = sum(row.recompute_ratio * (row.reused_tokens + row.recomputed_tokens) for row in rows)
    return ReuseReport(
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        tokens_by_tier=tiers,
        recomputed_tokens=sum(row.recomputed_tokens for row in rows),
        recompute_ratio=spent / donated if donated else 0.0,
        ttft_s=ttft_s,
        stages_s={name: sum(row.stages_s.get(name, 0.0) for row in rows) for row in rows for name in row.stages_s},
        declined=tuple(dict.fromkeys(reason for row in rows for reason in row.declined)),
        fallback=next((row.fallback for row in rows if row.fallback is not None), None),
        similarity=min(row.similarity for row in rows),
        rows=tuple(rows),
    )
