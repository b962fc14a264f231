"""What the runtime knows, as messages."""

from __future__ import annotations

from kvboost import __version__
from kvboost.circuit_breaker import fault_of
from kvboost.reuse import ReuseReport
from kvboost.runtime.audit.log import figures
from kvboost.runtime.batching import BatchState
from kvboost.runtime.serve.engine import Engine
from kvboost.types import Tier
from kvboost.v1 import runtime_pb2 as pb
from kvboost.wire.convert import namespace_to_proto, tier_to_proto

from .served import ServedModel


def token_event(token_id: int, text: str) -> pb.GenerateResponse:
    """Return the event of one answer token."""
    return pb.GenerateResponse(token=pb.TokenPiece(id=token_id, text=text))


def info_to_proto(served: ServedModel, batch: BatchState) -> pb.DescribeRuntimeResponse:
    """Return what is known of the served model, counters included."""
    support = served.engine.support
    return pb.DescribeRuntimeResponse(
        version=__version__,
        model=served.name,
        namespace=namespace_to_proto(served.engine.namespace),
        max_context_tokens=served.max_context_tokens,
        cache_address=served.cache_address,
        tiers=[tier_to_proto(tier) for tier in Tier if tier in support.tiers],
        limits=[support.reason] if support.reason else [],
        counters=served.engine.counters.snapshot(),
        audits=_audits(served.engine),
        cache_fault=fault_of(served.engine.cache),
        batch=pb.BatchState(
            max_batch=batch.max_batch,
            max_queue=batch.max_queue,
            running=batch.running,
            waiting=batch.waiting,
            obstacle=batch.obstacle,
        ),
    )


def _audits(engine: Engine) -> list[pb.TierAudit]:
    counts = engine.counters.snapshot()
    audits = []
    for tier, status in engine.audit.controller.status().items():
        low, high = status.rate_bounds
        audits.append(
            pb.TierAudit(
                tier=tier_to_proto(tier),
                audits=counts.get(f"audits_{tier}", 0),
                violations=counts.get(f"audit_violations_{tier}", 0),
                mean_kl=figures(engine.audit.log.records(tier))["mean_kl"],
                threshold=status.threshold,
                recompute_ratio=status.recompute_ratio,
                rate_low=low,
                rate_high=high,
                off=status.off,
            )
        )
    return audits


def report_to_proto(report: ReuseReport) -> pb.ReuseReport:
    """Return the message for ``report``."""
    return pb.ReuseReport(
        prompt_tokens=report.prompt_tokens,
        tokens_by_tier={str(tier): tokens for tier, tokens in report.tokens_by_tier.items()},
        recomputed_tokens=report.recomputed_tokens,
        recompute_ratio=report.recompute_ratio,
        ttft_s=report.ttft_s,
        stages_s=report.stages_s,
        declined=report.declined,
        fallback=report.fallback or "",
        similarity=report.similarity,
        spans=[
            pb.TierSpan(
                start=piece.span.start,
                end=piece.span.end,
                tier=tier_to_proto(piece.tier),
                similarity=piece.similarity,
                repaired=piece.repaired,
            )
            for piece in report.spans
        ],
        saved_s=report.saved_s,
        handover=report.handover or "",
    )
