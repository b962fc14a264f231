"""Reports made and merged."""

from __future__ import annotations

from collections.abc import Sequence

from kvboost.reuse import ReuseReport, TierSpan
from kvboost.runtime.plan.plan import Plan
from kvboost.types import Handover, Span, Tier


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
        handover=Handover.slowest(row.handover for row in rows),
        rows=tuple(rows),
    )
