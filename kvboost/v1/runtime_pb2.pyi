from kvboost.v1 import cache_pb2 as _cache_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRuntimeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeRuntimeResponse(_message.Message):
    __slots__ = ("version", "model", "namespace", "max_context_tokens", "cache_address", "tiers", "limits", "counters", "audits", "batch", "cache_fault")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    AUDITS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CACHE_FAULT_FIELD_NUMBER: _ClassVar[int]
    version: str
    model: str
    namespace: _cache_pb2.Namespace
    max_context_tokens: int
    cache_address: str
    tiers: _containers.RepeatedScalarFieldContainer[_cache_pb2.Tier]
    limits: _containers.RepeatedScalarFieldContainer[str]
    counters: _containers.ScalarMap[str, int]
    audits: _containers.RepeatedCompositeFieldContainer[TierAudit]
    batch: BatchState
    cache_fault: str
    def __init__(self, version: _Optional[str] = ..., model: _Optional[str] = ..., namespace: _Optional[_Union[_cache_pb2.Namespace, _Mapping]] = ..., max_context_tokens: _Optional[int] = ..., cache_address: _Optional[str] = ..., tiers: _Optional[_Iterable[_Union[_cache_pb2.Tier, str]]] = ..., limits: _Optional[_Iterable[str]] = ..., counters: _Optional[_Mapping[str, int]] = ..., audits: _Optional[_Iterable[_Union[TierAudit, _Mapping]]] = ..., batch: _Optional[_Union[BatchState, _Mapping]] = ..., cache_fault: _Optional[str] = ...) -> None: ...

class BatchState(_message.Message):
    __slots__ = ("max_batch", "max_queue", "running", "waiting", "obstacle")
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    OBSTACLE_FIELD_NUMBER: _ClassVar[int]
    max_batch: int
    max_queue: int
    running: int
    waiting: int
    obstacle: str
    def __init__(self, max_batch: _Optional[int] = ..., max_queue: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., obstacle: _Optional[str] = ...) -> None: ...

class TierAudit(_message.Message):
    __slots__ = ("tier", "audits", "violations", "mean_kl", "threshold", "recompute_ratio", "rate_low", "rate_high", "off")
    TIER_FIELD_NUMBER: _ClassVar[int]
    AUDITS_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    MEAN_KL_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_RATIO_FIELD_NUMBER: _ClassVar[int]
    RATE_LOW_FIELD_NUMBER: _ClassVar[int]
    RATE_HIGH_FIELD_NUMBER: _ClassVar[int]
    OFF_FIELD_NUMBER: _ClassVar[int]
    tier: _cache_pb2.Tier
    audits: int
    violations: int
    mean_kl: float
    threshold: float
    recompute_ratio: float
    rate_low: float
    rate_high: float
    off: bool
    def __init__(self, tier: _Optional[_Union[_cache_pb2.Tier, str]] = ..., audits: _Optional[int] = ..., violations: _Optional[int] = ..., mean_kl: _Optional[float] = ..., threshold: _Optional[float] = ..., recompute_ratio: _Optional[float] = ..., rate_low: _Optional[float] = ..., rate_high: _Optional[float] = ..., off: bool = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatMessages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "seed", "stop", "repetition_penalty")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    repetition_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., repetition_penalty: _Optional[float] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("prompt", "chat", "token_ids", "max_new_tokens", "sampling", "score_against_full", "skip_cache", "wait_for_store", "with_token_texts", "logprobs")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SCORE_AGAINST_FULL_FIELD_NUMBER: _ClassVar[int]
    SKIP_CACHE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_STORE_FIELD_NUMBER: _ClassVar[int]
    WITH_TOKEN_TEXTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    chat: ChatMessages
    token_ids: TokenIds
    max_new_tokens: int
    sampling: Sampling
    score_against_full: bool
    skip_cache: bool
    wait_for_store: bool
    with_token_texts: bool
    logprobs: int
    def __init__(self, prompt: _Optional[str] = ..., chat: _Optional[_Union[ChatMessages, _Mapping]] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., max_new_tokens: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., score_against_full: bool = ..., skip_cache: bool = ..., wait_for_store: bool = ..., with_token_texts: bool = ..., logprobs: _Optional[int] = ...) -> None: ...

class WarmRequest(_message.Message):
    __slots__ = ("documents", "prefix", "publish")
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    documents: _containers.RepeatedScalarFieldContainer[str]
    prefix: str
    publish: bool
    def __init__(self, documents: _Optional[_Iterable[str]] = ..., prefix: _Optional[str] = ..., publish: bool = ...) -> None: ...

class WarmReceipt(_message.Message):
    __slots__ = ("index", "tokens", "reused_tokens", "stored_chunks", "refused_chunks", "seconds")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STORED_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    index: int
    tokens: int
    reused_tokens: int
    stored_chunks: int
    refused_chunks: int
    seconds: float
    def __init__(self, index: _Optional[int] = ..., tokens: _Optional[int] = ..., reused_tokens: _Optional[int] = ..., stored_chunks: _Optional[int] = ..., refused_chunks: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class OrderRequest(_message.Message):
    __slots__ = ("documents", "prompt", "chat")
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    documents: _containers.RepeatedScalarFieldContainer[str]
    prompt: str
    chat: ChatMessages
    def __init__(self, documents: _Optional[_Iterable[str]] = ..., prompt: _Optional[str] = ..., chat: _Optional[_Union[ChatMessages, _Mapping]] = ...) -> None: ...

class OrderResponse(_message.Message):
    __slots__ = ("indices", "prefix_tokens", "given_prefix_tokens")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    prefix_tokens: int
    given_prefix_tokens: int
    def __init__(self, indices: _Optional[_Iterable[int]] = ..., prefix_tokens: _Optional[int] = ..., given_prefix_tokens: _Optional[int] = ...) -> None: ...

class TokenPiece(_message.Message):
    __slots__ = ("id", "text", "logprob", "top_logprobs")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    logprob: TokenLogprob
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., logprob: _Optional[_Union[TokenLogprob, _Mapping]] = ..., top_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("id", "text", "utf8", "logprob")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UTF8_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    utf8: bytes
    logprob: float
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., utf8: _Optional[bytes] = ..., logprob: _Optional[float] = ...) -> None: ...

class TierSpan(_message.Message):
    __slots__ = ("start", "end", "tier", "similarity", "repaired")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    tier: _cache_pb2.Tier
    similarity: float
    repaired: bool
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., tier: _Optional[_Union[_cache_pb2.Tier, str]] = ..., similarity: _Optional[float] = ..., repaired: bool = ...) -> None: ...

class ReuseReport(_message.Message):
    __slots__ = ("prompt_tokens", "tokens_by_tier", "recomputed_tokens", "ttft_s", "stages_s", "declined", "fallback", "similarity", "spans", "recompute_ratio", "saved_s", "handover")
    class TokensByTierEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class StagesSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_BY_TIER_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    STAGES_S_FIELD_NUMBER: _ClassVar[int]
    DECLINED_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_RATIO_FIELD_NUMBER: _ClassVar[int]
    SAVED_S_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    tokens_by_tier: _containers.ScalarMap[str, int]
    recomputed_tokens: int
    ttft_s: float
    stages_s: _containers.ScalarMap[str, float]
    declined: _containers.RepeatedScalarFieldContainer[str]
    fallback: str
    similarity: float
    spans: _containers.RepeatedCompositeFieldContainer[TierSpan]
    recompute_ratio: float
    saved_s: float
    handover: str
    def __init__(self, prompt_tokens: _Optional[int] = ..., tokens_by_tier: _Optional[_Mapping[str, int]] = ..., recomputed_tokens: _Optional[int] = ..., ttft_s: _Optional[float] = ..., stages_s: _Optional[_Mapping[str, float]] = ..., declined: _Optional[_Iterable[str]] = ..., fallback: _Optional[str] = ..., similarity: _Optional[float] = ..., spans: _Optional[_Iterable[_Union[TierSpan, _Mapping]]] = ..., recompute_ratio: _Optional[float] = ..., saved_s: _Optional[float] = ..., handover: _Optional[str] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("kl_mean", "kl_first", "top1_agreement", "first_divergence", "positions", "full_ttft_s", "full_answer")
    KL_MEAN_FIELD_NUMBER: _ClassVar[int]
    KL_FIRST_FIELD_NUMBER: _ClassVar[int]
    TOP1_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    FULL_TTFT_S_FIELD_NUMBER: _ClassVar[int]
    FULL_ANSWER_FIELD_NUMBER: _ClassVar[int]
    kl_mean: float
    kl_first: float
    top1_agreement: float
    first_divergence: int
    positions: int
    full_ttft_s: float
    full_answer: str
    def __init__(self, kl_mean: _Optional[float] = ..., kl_first: _Optional[float] = ..., top1_agreement: _Optional[float] = ..., first_divergence: _Optional[int] = ..., positions: _Optional[int] = ..., full_ttft_s: _Optional[float] = ..., full_answer: _Optional[str] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "new_tokens", "report", "score", "text", "token_texts")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TEXTS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    new_tokens: int
    report: ReuseReport
    score: Score
    text: str
    token_texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reason: _Optional[str] = ..., new_tokens: _Optional[int] = ..., report: _Optional[_Union[ReuseReport, _Mapping]] = ..., score: _Optional[_Union[Score, _Mapping]] = ..., text: _Optional[str] = ..., token_texts: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("token", "finish")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    token: TokenPiece
    finish: Finish
    def __init__(self, token: _Optional[_Union[TokenPiece, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...
