"""What the runtime service is asked, to messages; what it answers, from messages of ``kvboost.v1``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvboost.client.runtime_types import (
    BatchState,
    ChatMessage,
    Finish,
    RuntimeInfo,
    Score,
    TierAudit,
    TokenLogprob,
    TokenPiece,
    WarmReceipt,
)
from kvboost.documents import DocumentOrder
from kvboost.errors import DataLossError, InputError
from kvboost.reuse import ReuseReport, TierSpan
from kvboost.texts import check_text, check_texts
from kvboost.types import Handover, Span, Tier
from kvboost.v1 import runtime_pb2 as pb
from kvboost.wire.convert import namespace_from_proto, tier_from_proto, token_ids_to_proto

Prompt = str | Sequence[ChatMessage] | Sequence[int]
"""Text, a chat, or token ids."""


def prompt_to_proto(prompt: Prompt, request: pb.GenerateRequest) -> None:
    """Put ``prompt`` into ``request``."""
    if isinstance(prompt, str):
        check_text(prompt, "prompt")
        request.prompt = prompt
        return
    if not isinstance(prompt, Sequence):
        raise InputError("prompt must be a text, a list of ChatMessage, or a list of token ids")
    messages = [m for m in prompt if isinstance(m, ChatMessage)]
    ids = [i for i in prompt if isinstance(i, int) and not isinstance(i, bool)]
    if len(messages) == len(prompt) > 0:
        request.chat.messages.extend(_chat_to_proto(messages))
    elif len(ids) == len(prompt):
        request.token_ids.ids.extend(token_ids_to_proto(ids))
    else:
        raise InputError("prompt must be a text, a list of ChatMessage, or a list of token ids")


def order_to_proto(documents: Sequence[str], before: str | Sequence[ChatMessage]) -> pb.OrderRequest:
    """Return the request for an order of ``documents`` behind a text or a chat."""
    check_texts(documents, "documents")
    request = pb.OrderRequest(documents=documents)
    if isinstance(before, str):
        check_text(before, "before")
        request.prompt = before
        return request
    messages = [m for m in before if isinstance(m, ChatMessage)] if isinstance(before, Sequence) else []
    if messages and len(messages) == len(before):
        request.chat.messages.extend(_chat_to_proto(messages))
    else:
        raise InputError("before must be a text, or a list of ChatMessage whose last one goes on with the documents")
    return request


def _chat_to_proto(messages: Sequence[ChatMessage]) -> Iterator[pb.ChatMessage]:
    for i, message in enumerate(messages):
        check_text(message.role, f"messages[{i}].role")
        check_text(message.content, f"messages[{i}].content")
        yield pb.ChatMessage(role=message.role, content=message.content)


def order_from_proto(message: pb.OrderResponse) -> DocumentOrder:
    """Return the order of ``message``."""
    return DocumentOrder(tuple(message.indices), message.prefix_tokens, message.given_prefix_tokens)


def runtime_info_from_proto(message: pb.DescribeRuntimeResponse) -> RuntimeInfo:
    """Return the info of ``message``."""
    return RuntimeInfo(
        version=message.version,
        model=message.model,
        namespace=namespace_from_proto(message.namespace),
        max_context_tokens=message.max_context_tokens,
        cache_address=message.cache_address,
        tiers=tuple(tier_from_proto(t, f"tiers[{i}]") for i, t in enumerate(message.tiers)),
        limits=tuple(message.limits),
        counters=dict(message.counters),
        audits=tuple(_audit_from_proto(audit, f"audits[{i}]") for i, audit in enumerate(message.audits)),
        batch=_batch_from_proto(message.batch) if message.HasField("batch") else None,
        cache_fault=message.cache_fault,
    )


def warm_receipt_from_proto(message: pb.WarmReceipt, first: int = 0) -> WarmReceipt:
    """Return the receipt of ``message``, its documents counted from ``first``."""
    return WarmReceipt(
        index=first + message.index,
        tokens=message.tokens,
        reused_tokens=message.reused_tokens,
        stored_chunks=message.stored_chunks,
        refused_chunks=message.refused_chunks,
        seconds=message.seconds,
    )


def _batch_from_proto(message: pb.BatchState) -> BatchState:
    return BatchState(message.max_batch, message.max_queue, message.running, message.waiting, message.obstacle)


def _audit_from_proto(message: pb.TierAudit, field: str) -> TierAudit:
    return TierAudit(
        tier=tier_from_proto(message.tier, f"{field}.tier"),
        audits=message.audits,
        violations=message.violations,
        mean_kl=message.mean_kl if message.HasField("mean_kl") else None,
        threshold=message.threshold,
        recompute_ratio=message.recompute_ratio,
        rate_bounds=(message.rate_low, message.rate_high),
        off=message.off,
    )


def event_from_proto(message: pb.GenerateResponse) -> TokenPiece | Finish:
    """Return the event of ``message``."""
    if message.HasField("token"):
        token = message.token
        chosen = _logprob_from_proto(token.logprob) if token.HasField("logprob") else None
        return TokenPiece(token.id, token.text, chosen, tuple(map(_logprob_from_proto, token.top_logprobs)))
    if not message.HasField("finish"):
        raise DataLossError("an event of the answer is neither a token nor its end; update kvboost")
    finish = message.finish
    return Finish(
        reason=finish.reason,
        new_tokens=finish.new_tokens,
        report=report_from_proto(finish.report),
        score=score_from_proto(finish.score) if finish.HasField("score") else None,
        text=finish.text,
        token_texts=tuple(finish.token_texts),
    )


def _logprob_from_proto(message: pb.TokenLogprob) -> TokenLogprob:
    utf8 = message.utf8 if message.HasField("utf8") else None
    return TokenLogprob(message.id, message.text, utf8, message.logprob)


def report_from_proto(message: pb.ReuseReport) -> ReuseReport:
    """Return the report of ``message``."""
    return ReuseReport(
        prompt_tokens=message.prompt_tokens,
        tokens_by_tier={tier: message.tokens_by_tier.get(tier, 0) for tier in Tier},
        recomputed_tokens=message.recomputed_tokens,
        recompute_ratio=message.recompute_ratio,
        ttft_s=message.ttft_s,
        stages_s=dict(message.stages_s),
        declined=tuple(message.declined),
        fallback=message.fallback or None,
        similarity=message.similarity,
        spans=tuple(
            TierSpan(Span(s.start, s.end), tier_from_proto(s.tier, f"spans[{i}].tier"), s.similarity, s.repaired)
            for i, s in enumerate(message.spans)
        ),
        saved_s=message.saved_s if message.HasField("saved_s") else None,
        handover=next((way for way in Handover if way == message.handover), None),
    )


def score_from_proto(message: pb.Score) -> Score:
    """Return the score of ``message``."""
    return Score(
        kl_mean=message.kl_mean,
        kl_first=message.kl_first,
        top1_agreement=message.top1_agreement,
        first_divergence=message.first_divergence if message.HasField("first_divergence") else None,
        positions=message.positions,
        full_ttft_s=message.full_ttft_s,
        full_answer=message.full_answer,
    )
