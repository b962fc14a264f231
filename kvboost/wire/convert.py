"""Nouns of :mod:`kvboost.types` to messages of ``kvboost.v1`` and back, in pairs.

``x_from_proto`` checks what it reads and raises :class:`~kvboost.errors.InputError` with the field's path.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Buffer

from kvboost.checksum import checksum
from kvboost.errors import InputError
from kvboost.texts import check_text
from kvboost.types import (
    Chunk,
    Donor,
    KVLayout,
    Match,
    MatchQuery,
    MatchResult,
    Namespace,
    NewChunk,
    PutRequest,
    Span,
    Tier,
)
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire.checks import check_count, check_counts

_TIER_TO_PROTO: dict[Tier, pb.Tier] = {
    Tier.PREFIX: pb.TIER_PREFIX,
    Tier.CONTINUED: pb.TIER_CONTINUED,
    Tier.EXACT: pb.TIER_EXACT,
    Tier.SIMILAR: pb.TIER_SIMILAR,
    Tier.SUBSTITUTE: pb.TIER_SUBSTITUTE,
    Tier.COMPUTED: pb.TIER_COMPUTED,
}
_TIER_FROM_PROTO = {number: tier for tier, number in _TIER_TO_PROTO.items()}


def tier_to_proto(tier: Tier) -> pb.Tier:
    """Return the enum value for ``tier``."""
    return _TIER_TO_PROTO[tier]


def tier_from_proto(number: pb.Tier, field: str = "tier") -> Tier:
    """Return the tier for an enum value; an unknown one is refused."""
    if number not in _TIER_FROM_PROTO:
        raise InputError(f"{field} {number} is not a tier that this version knows; update kvboost")
    return _TIER_FROM_PROTO[number]


def token_ids_to_proto(token_ids: Sequence[int]) -> Sequence[int]:
    """Return ``token_ids`` after checking that each fits an unsigned 32-bit field."""
    return check_counts(token_ids, "token_ids")


def key_to_proto(key: str) -> str:
    """Return the key of a namespace after checking that it is a text."""
    check_text(key, "namespace")
    return key


def chunk_ids_to_proto(chunk_ids: Sequence[int]) -> Sequence[int]:
    """Return ``chunk_ids`` after checking that each fits an unsigned 64-bit field."""
    return check_counts(chunk_ids, "chunk_ids", 64)


def span_to_proto(span: Span, field: str = "span") -> pb.Span:
    """Return the message for ``span``."""
    return pb.Span(start=check_count(span.start, f"{field}.start"), end=check_count(span.end, f"{field}.end"))


def span_from_proto(message: pb.Span, field: str = "span") -> Span:
    """Return the span of ``message``; an empty or reversed one is refused."""
    if message.start >= message.end:
        raise InputError(f"{field} [{message.start}, {message.end}) must have start < end")
    return Span(message.start, message.end)


def layout_to_proto(layout: KVLayout) -> pb.KVLayout:
    """Return the message for ``layout``."""
    sizes = {
        name: check_count(getattr(layout, name), f"layout.{name}")
        for name in ("num_layers", "num_kv_heads", "key_dim", "value_dim")
    }
    return pb.KVLayout(**sizes, dtype=layout.dtype)


def layout_from_proto(message: pb.KVLayout) -> KVLayout:
    """Return the layout of ``message``; a dtype or size that cannot be is refused."""
    return KVLayout(message.num_layers, message.num_kv_heads, message.key_dim, message.value_dim, message.dtype)


def namespace_to_proto(namespace: Namespace) -> pb.Namespace:
    """Return the message for ``namespace``."""
    for name in ("model", "tokenizer", "rope", "adapter", "tenant"):
        check_text(getattr(namespace, name), f"namespace.{name}")
    return pb.Namespace(
        model=namespace.model,
        tokenizer=namespace.tokenizer,
        rope=namespace.rope,
        layout=layout_to_proto(namespace.layout),
        adapter=namespace.adapter,
        tenant=namespace.tenant,
    )


def namespace_from_proto(message: pb.Namespace) -> Namespace:
    """Return the namespace of ``message``; model and layout must be there."""
    if not message.model:
        raise InputError("namespace.model must name the model's weights; it is empty")
    if not message.HasField("layout"):
        raise InputError("namespace.layout is missing; send the shape and dtype of the model's K/V")
    return Namespace(
        model=message.model,
        tokenizer=message.tokenizer,
        rope=message.rope,
        layout=layout_from_proto(message.layout),
        adapter=message.adapter,
        tenant=message.tenant,
    )


def query_to_proto(query: MatchQuery) -> pb.MatchRequest:
    """Return the message for ``query``."""
    for i, chunk in enumerate(query.chunks):
        check_text(chunk.text, f"chunks[{i}].text")
    if query.min_shared_tokens is not None:
        check_count(query.min_shared_tokens, "min_shared_tokens")
    return pb.MatchRequest(
        namespace=key_to_proto(query.namespace),
        token_ids=token_ids_to_proto(query.token_ids),
        chunk_ends=[c.span.end for c in query.chunks],
        chunk_texts=[c.text for c in query.chunks],
        threshold=query.threshold,
        max_nominees=check_count(query.max_nominees, "max_nominees"),
        min_shared_tokens=query.min_shared_tokens,
    )


def query_from_proto(message: pb.MatchRequest) -> MatchQuery:
    """Return the query of ``message``; chunk ends must ascend and reach the end of the tokens."""
    ends, texts = message.chunk_ends, message.chunk_texts
    if len(ends) != len(texts):
        raise InputError(f"chunk_texts has {len(texts)} entries, chunk_ends {len(ends)}; send one text for each chunk")
    chunks, start = [], 0
    for i, (end, text) in enumerate(zip(ends, texts, strict=True)):
        if end <= start:
            raise InputError(f"chunk_ends[{i}] is {end} and must be greater than {start}, where the chunk starts")
        chunks.append(Chunk(Span(start, end), text))
        start = end
    if start != len(message.token_ids):
        raise InputError(f"chunk_ends cover {start} tokens, token_ids has {len(message.token_ids)}")
    threshold = message.threshold if message.HasField("threshold") else None
    min_shared_tokens = message.min_shared_tokens if message.HasField("min_shared_tokens") else None
    token_ids = tuple(message.token_ids)
    return MatchQuery(message.namespace, token_ids, tuple(chunks), threshold, message.max_nominees, min_shared_tokens)


def donor_to_proto(donor: Donor) -> pb.Donor:
    """Return the message for ``donor``."""
    return pb.Donor(
        chunk_id=donor.chunk_id,
        token_ids=donor.token_ids,
        start=donor.start,
        parent_hash=donor.parent_hash,
        prefix_hash=donor.prefix_hash,
        exact=donor.exact,
    )


def donor_from_proto(message: pb.Donor) -> Donor:
    """Return the donor of ``message``."""
    return Donor(
        chunk_id=message.chunk_id,
        token_ids=tuple(message.token_ids),
        start=message.start,
        parent_hash=message.parent_hash,
        prefix_hash=message.prefix_hash,
        exact=message.exact,
    )


def result_to_proto(result: MatchResult) -> pb.MatchResponse:
    """Return the message for ``result``; a donor of several matches is sent once."""
    index: dict[int, int] = {}
    message = pb.MatchResponse(embedded_chunks=result.embedded_chunks, spared_chunks=result.spared_chunks)
    for match in result.matches:
        donor = match.donor
        if donor.chunk_id not in index:
            index[donor.chunk_id] = len(index)
            message.donors.append(donor_to_proto(donor))
        message.matches.append(
            pb.Match(
                target=span_to_proto(match.target),
                donor=index[donor.chunk_id],
                donor_span=span_to_proto(match.donor_span),
                tier=tier_to_proto(match.tier),
                similarity=match.similarity,
            )
        )
    return message


def result_from_proto(message: pb.MatchResponse) -> MatchResult:
    """Return the result of ``message``; a match must name one of its donors."""
    donors = [donor_from_proto(d) for d in message.donors]
    matches = []
    for i, match in enumerate(message.matches):
        if match.donor >= len(donors):
            raise InputError(f"matches[{i}].donor is {match.donor}, there are {len(donors)} donors")
        matches.append(
            Match(
                target=span_from_proto(match.target, f"matches[{i}].target"),
                donor=donors[match.donor],
                donor_span=span_from_proto(match.donor_span, f"matches[{i}].donor_span"),
                tier=tier_from_proto(match.tier, f"matches[{i}].tier"),
                similarity=match.similarity,
            )
        )
    return MatchResult(tuple(matches), message.embedded_chunks, message.spared_chunks)


def offer_to_proto(request: PutRequest) -> pb.OfferRequest:
    """Return the message that asks which chunks of ``request`` are wanted."""
    return pb.OfferRequest(
        namespace=key_to_proto(request.namespace),
        token_ids=token_ids_to_proto(request.token_ids),
        chunks=[
            pb.OfferedChunk(span=span_to_proto(chunk.span, f"chunks[{i}].span"), exact=chunk.exact)
            for i, chunk in enumerate(request.chunks)
        ],
        prefix_only=request.prefix_only,
    )


def offer_from_proto(message: pb.OfferRequest) -> PutRequest:
    """Return what ``message`` offers; its chunks have neither texts nor payloads yet."""
    chunks = tuple(
        NewChunk(span_from_proto(chunk.span, f"chunks[{i}].span"), "", chunk.exact, b"")
        for i, chunk in enumerate(message.chunks)
    )
    return PutRequest(message.namespace, tuple(message.token_ids), chunks, message.prefix_only)


def new_chunk_to_proto(chunk: NewChunk) -> pb.ChunkHeader:
    """Return the message that announces ``chunk``; its payload follows as frames."""
    check_text(chunk.text, "text")
    return pb.ChunkHeader(
        span=span_to_proto(chunk.span),
        exact=chunk.exact,
        text=chunk.text,
        nbytes=memoryview(chunk.payload).nbytes,
        checksum=checksum(chunk.payload),
    )


def new_chunk_from_proto(message: pb.ChunkHeader, payload: Buffer, field: str = "chunk") -> NewChunk:
    """Return the chunk that ``message`` announced, now that its payload is there."""
    return NewChunk(span_from_proto(message.span, f"{field}.span"), message.text, message.exact, payload)
