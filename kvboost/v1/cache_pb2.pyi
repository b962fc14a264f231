from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_PREFIX: _ClassVar[Tier]
    TIER_EXACT: _ClassVar[Tier]
    TIER_SIMILAR: _ClassVar[Tier]
    TIER_SUBSTITUTE: _ClassVar[Tier]
    TIER_COMPUTED: _ClassVar[Tier]
    TIER_CONTINUED: _ClassVar[Tier]
TIER_UNSPECIFIED: Tier
TIER_PREFIX: Tier
TIER_EXACT: Tier
TIER_SIMILAR: Tier
TIER_SUBSTITUTE: Tier
TIER_COMPUTED: Tier
TIER_CONTINUED: Tier

class Span(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class KVLayout(_message.Message):
    __slots__ = ("num_layers", "num_kv_heads", "key_dim", "value_dim", "dtype")
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    KEY_DIM_FIELD_NUMBER: _ClassVar[int]
    VALUE_DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    num_layers: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: str
    def __init__(self, num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., key_dim: _Optional[int] = ..., value_dim: _Optional[int] = ..., dtype: _Optional[str] = ...) -> None: ...

class Namespace(_message.Message):
    __slots__ = ("model", "tokenizer", "rope", "layout", "adapter", "tenant")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    ROPE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokenizer: str
    rope: str
    layout: KVLayout
    adapter: str
    tenant: str
    def __init__(self, model: _Optional[str] = ..., tokenizer: _Optional[str] = ..., rope: _Optional[str] = ..., layout: _Optional[_Union[KVLayout, _Mapping]] = ..., adapter: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class CacheInfo(_message.Message):
    __slots__ = ("version", "max_bytes", "embedder", "max_variants")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDER_FIELD_NUMBER: _ClassVar[int]
    MAX_VARIANTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    max_bytes: int
    embedder: str
    max_variants: int
    def __init__(self, version: _Optional[str] = ..., max_bytes: _Optional[int] = ..., embedder: _Optional[str] = ..., max_variants: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: CacheInfo
    def __init__(self, info: _Optional[_Union[CacheInfo, _Mapping]] = ...) -> None: ...

class MatchRequest(_message.Message):
    __slots__ = ("namespace", "token_ids", "chunk_ends", "chunk_texts", "threshold", "max_nominees", "min_shared_tokens")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ENDS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TEXTS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MAX_NOMINEES_FIELD_NUMBER: _ClassVar[int]
    MIN_SHARED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    chunk_ends: _containers.RepeatedScalarFieldContainer[int]
    chunk_texts: _containers.RepeatedScalarFieldContainer[str]
    threshold: float
    max_nominees: int
    min_shared_tokens: int
    def __init__(self, namespace: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., chunk_ends: _Optional[_Iterable[int]] = ..., chunk_texts: _Optional[_Iterable[str]] = ..., threshold: _Optional[float] = ..., max_nominees: _Optional[int] = ..., min_shared_tokens: _Optional[int] = ...) -> None: ...

class Donor(_message.Message):
    __slots__ = ("chunk_id", "token_ids", "start", "parent_hash", "prefix_hash", "exact")
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    chunk_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    start: int
    parent_hash: bytes
    prefix_hash: bytes
    exact: bool
    def __init__(self, chunk_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., start: _Optional[int] = ..., parent_hash: _Optional[bytes] = ..., prefix_hash: _Optional[bytes] = ..., exact: bool = ...) -> None: ...

class Match(_message.Message):
    __slots__ = ("target", "donor", "donor_span", "tier", "similarity")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DONOR_FIELD_NUMBER: _ClassVar[int]
    DONOR_SPAN_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    target: Span
    donor: int
    donor_span: Span
    tier: Tier
    similarity: float
    def __init__(self, target: _Optional[_Union[Span, _Mapping]] = ..., donor: _Optional[int] = ..., donor_span: _Optional[_Union[Span, _Mapping]] = ..., tier: _Optional[_Union[Tier, str]] = ..., similarity: _Optional[float] = ...) -> None: ...

class MatchResponse(_message.Message):
    __slots__ = ("donors", "matches", "embedded_chunks", "spared_chunks")
    DONORS_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDED_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    SPARED_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    donors: _containers.RepeatedCompositeFieldContainer[Donor]
    matches: _containers.RepeatedCompositeFieldContainer[Match]
    embedded_chunks: int
    spared_chunks: int
    def __init__(self, donors: _Optional[_Iterable[_Union[Donor, _Mapping]]] = ..., matches: _Optional[_Iterable[_Union[Match, _Mapping]]] = ..., embedded_chunks: _Optional[int] = ..., spared_chunks: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("namespace", "chunk_ids", "lease", "parts")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    chunk_ids: _containers.RepeatedScalarFieldContainer[int]
    lease: str
    parts: int
    def __init__(self, namespace: _Optional[str] = ..., chunk_ids: _Optional[_Iterable[int]] = ..., lease: _Optional[str] = ..., parts: _Optional[int] = ...) -> None: ...

class Handle(_message.Message):
    __slots__ = ("chunk", "pin", "segment", "offset", "nbytes", "generation", "checksum")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    pin: int
    segment: str
    offset: int
    nbytes: int
    generation: int
    checksum: int
    def __init__(self, chunk: _Optional[int] = ..., pin: _Optional[int] = ..., segment: _Optional[str] = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ..., generation: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("released", "held")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    released: _containers.RepeatedScalarFieldContainer[int]
    held: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, released: _Optional[_Iterable[int]] = ..., held: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("lease", "directory", "proof_file", "proof", "pin_s")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    PROOF_FILE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    PIN_S_FIELD_NUMBER: _ClassVar[int]
    lease: str
    directory: str
    proof_file: str
    proof: bytes
    pin_s: float
    def __init__(self, lease: _Optional[str] = ..., directory: _Optional[str] = ..., proof_file: _Optional[str] = ..., proof: _Optional[bytes] = ..., pin_s: _Optional[float] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("chunk", "total_bytes", "offset", "checksum", "handles", "data")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    total_bytes: int
    offset: int
    checksum: int
    handles: _containers.RepeatedCompositeFieldContainer[Handle]
    data: bytes
    def __init__(self, chunk: _Optional[int] = ..., total_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., checksum: _Optional[int] = ..., handles: _Optional[_Iterable[_Union[Handle, _Mapping]]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ChunkHeader(_message.Message):
    __slots__ = ("span", "exact", "text", "nbytes", "checksum")
    SPAN_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    span: Span
    exact: bool
    text: str
    nbytes: int
    checksum: int
    def __init__(self, span: _Optional[_Union[Span, _Mapping]] = ..., exact: bool = ..., text: _Optional[str] = ..., nbytes: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class OfferedChunk(_message.Message):
    __slots__ = ("span", "exact")
    SPAN_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    span: Span
    exact: bool
    def __init__(self, span: _Optional[_Union[Span, _Mapping]] = ..., exact: bool = ...) -> None: ...

class OfferRequest(_message.Message):
    __slots__ = ("namespace", "token_ids", "chunks", "prefix_only")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_ONLY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    chunks: _containers.RepeatedCompositeFieldContainer[OfferedChunk]
    prefix_only: bool
    def __init__(self, namespace: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., chunks: _Optional[_Iterable[_Union[OfferedChunk, _Mapping]]] = ..., prefix_only: bool = ...) -> None: ...

class OfferResponse(_message.Message):
    __slots__ = ("wanted", "receipt", "offer")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    wanted: _containers.RepeatedScalarFieldContainer[int]
    receipt: PutReceipt
    offer: str
    def __init__(self, wanted: _Optional[_Iterable[int]] = ..., receipt: _Optional[_Union[PutReceipt, _Mapping]] = ..., offer: _Optional[str] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("method", "data")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    method: str
    data: bytes
    def __init__(self, method: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutHeader(_message.Message):
    __slots__ = ("namespace", "token_ids", "chunks", "prefix_only", "offer")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_ONLY_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    chunks: _containers.RepeatedCompositeFieldContainer[ChunkHeader]
    prefix_only: bool
    offer: str
    def __init__(self, namespace: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., chunks: _Optional[_Iterable[_Union[ChunkHeader, _Mapping]]] = ..., prefix_only: bool = ..., offer: _Optional[str] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("header", "frame")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    header: PutHeader
    frame: Frame
    def __init__(self, header: _Optional[_Union[PutHeader, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ...) -> None: ...

class PutReceipt(_message.Message):
    __slots__ = ("stored", "duplicate", "over_variants", "too_large")
    STORED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    OVER_VARIANTS_FIELD_NUMBER: _ClassVar[int]
    TOO_LARGE_FIELD_NUMBER: _ClassVar[int]
    stored: int
    duplicate: int
    over_variants: int
    too_large: int
    def __init__(self, stored: _Optional[int] = ..., duplicate: _Optional[int] = ..., over_variants: _Optional[int] = ..., too_large: _Optional[int] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: PutReceipt
    def __init__(self, receipt: _Optional[_Union[PutReceipt, _Mapping]] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("namespace", "chunk_ids")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    chunk_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, namespace: _Optional[str] = ..., chunk_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ("evicted",)
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    evicted: int
    def __init__(self, evicted: _Optional[int] = ...) -> None: ...

class DropRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class DropResponse(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    def __init__(self, dropped: _Optional[int] = ...) -> None: ...

class NamespaceStats(_message.Message):
    __slots__ = ("namespace", "tenant", "model", "chunks", "stored_bytes", "vectors", "queries", "query_tokens", "hit_tokens", "evicted_chunks", "exact_bytes", "index_bytes", "non_finite_chunks")
    class HitTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    EXACT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    tenant: str
    model: str
    chunks: int
    stored_bytes: int
    vectors: int
    queries: int
    query_tokens: int
    hit_tokens: _containers.ScalarMap[str, int]
    evicted_chunks: int
    exact_bytes: int
    index_bytes: int
    non_finite_chunks: int
    def __init__(self, namespace: _Optional[str] = ..., tenant: _Optional[str] = ..., model: _Optional[str] = ..., chunks: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., vectors: _Optional[int] = ..., queries: _Optional[int] = ..., query_tokens: _Optional[int] = ..., hit_tokens: _Optional[_Mapping[str, int]] = ..., evicted_chunks: _Optional[int] = ..., exact_bytes: _Optional[int] = ..., index_bytes: _Optional[int] = ..., non_finite_chunks: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CacheStats(_message.Message):
    __slots__ = ("max_bytes", "stored_bytes", "uptime_s", "namespaces", "index_bytes")
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_bytes: int
    stored_bytes: int
    uptime_s: float
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStats]
    index_bytes: int
    def __init__(self, max_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., uptime_s: _Optional[float] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceStats, _Mapping]]] = ..., index_bytes: _Optional[int] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: CacheStats
    def __init__(self, stats: _Optional[_Union[CacheStats, _Mapping]] = ...) -> None: ...
