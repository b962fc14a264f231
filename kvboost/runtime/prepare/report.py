"""Reports made and merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvboost.reuse import ReuseReport, TierSpan
from kvboost.runtime.plan.plan import Plan
from kvboost.types import Handover, Span, Tier


def tier_spans(plan: Plan, recomputed: Sequence[int]) -> tuple[TierSpan, ...]:
    """Return the prompt in order by tier, recomputed tokens as computed and marked.

    Parameters
    ----------
    recomputed
        Positions, ascending.
    """
    spans: list[TierSpan] = []
    following = 0
    for base in _by_piece(plan):
        at = base.span.start
        while following < len(recomputed) and recomputed[following] < base.span.end:
            start = end = recomputed[following]
            while following < len(recomputed) and recomputed[following] == end < base.span.end:
                end += 1
                following += 1
            if at < start:
                _join(spans, replace(base, span=Span(at, start)))
            _join(spans, TierSpan(Span(start, end), Tier.COMPUTED, 1.0, True))
            at = end
        if at < base.span.end:
            _join(spans, replace(base, span=Span(at, base.span.end)))
    return tuple(spans)


def _by_piece(plan: Plan) -> Iterator[TierSpan]:
    """Yield what the plan reuses, and between that what it computes, in order."""
    at = 0
    for piece in plan.reuse:
        if at < piece.target.start:
            yield TierSpan(Span(at, piece.target.start), Tier.COMPUTED)
        yield TierSpan(piece.target, piece.tier, piece.similarity)
        at = piece.target.end
    if at < plan.num_tokens:
        yield TierSpan(Span(at, plan.num_tokens), Tier.COMPUTED)


def _join(spans: list[TierSpan], added: TierSpan) -> None:
    """Append ``added``, as a part of the last span where nothing but the place tells them apart."""
    if spans and replace(spans[-1], span=added.span) == added:
        spans[-1] = replace(added, span=Span(spans[-1].span.start, added.span.end))
    else:
        spans.append(added)


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
