"""The sections of the configuration, their fields and defaults.

Each class is one section of the file. Its ``Attributes`` become the comments of the file that
``kvboost config init`` writes, so every field is described on its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvboost.errors import ConfigError
from kvboost.policy import ReusePolicy
from kvboost.types import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The language model.

    Attributes
    ----------
    name_or_path
        Hub id or local directory; empty for the demo model, which comes from the package registry.
    revision
        Branch, tag or commit on the hub; empty for the newest.
    dtype
        Type of weights and K/V: auto (as stored), float32, float16 or bfloat16.
    device
        Where the model runs, as torch names it; auto takes a GPU where there is one.
    """

    name_or_path: str = ""
    revision: str = ""
    dtype: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, ("auto", *DTYPE_BYTES))


@dataclass(frozen=True, slots=True)
class SegmentConfig:
    """How a prompt is cut into chunks.

    Attributes
    ----------
    min_tokens
        Least length of a chunk; shorter sentences are joined. A paragraph's last chunk may be shorter.
    max_tokens
        Greatest length of a chunk; longer sentences are cut at clause marks, then at words.
    boundaries
        Where chunks end: sentence (at the first sentence end that makes the chunk long enough) or embedding
        (where neighbouring sentences change topic).
    language
        Language of the trained sentence boundaries, in English and lower case.
    """

    min_tokens: int = 16
    max_tokens: int = 64
    boundaries: str = "sentence"
    language: str = "english"

    def __post_init__(self) -> None:
        _at_least("min_tokens", self.min_tokens, 1)
        _one_of("boundaries", self.boundaries, ("sentence", "embedding"))
        if self.max_tokens < self.min_tokens:
            raise ConfigError(f"max_tokens {self.max_tokens} must not be below min_tokens {self.min_tokens}")


@dataclass(frozen=True, slots=True)
class EmbedderConfig:
    """The sentence embedder that nominates similar chunks.

    Attributes
    ----------
    model
        auto (all-MiniLM-L6-v2 from the package registry), static (word vectors distilled from it at first use:
        hundreds of times faster, weaker on paraphrases), a hub id or local directory, or none.
    """

    model: str = "auto"

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model must not be empty; write none to do without an embedder")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The cache of K/V.

    Attributes
    ----------
    address
        Where the cache service listens: host:port or unix:/path; empty for a cache in this process.
    max_bytes
        Byte budget of a cache that runs here, tables included, as a number or with a unit, such as "2GiB".
    max_variants
        Under how many histories the same chunk is stored, at most; more where it can serve its own history alone.
    continued_max_bytes
        Bytes of K/V that a runtime keeps for the continuation of its own requests with borrowed K/V; 0 for a tenth of
        max_bytes.
    continued_ttl_s
        Seconds after which what was not continued is forgotten.
    tenant
        Name that K/V are kept apart by; tenants never share.
    published
        Name of published documents that are read beside the tenant's own K/V; empty for none.
    arena_dir
        Where the cache service keeps K/V as shared memory for clients on its host; empty for /dev/shm where the
        budget fits in, else the directory for temporary files; none for memory of its own.
    """

    address: str = ""
    max_bytes: int = 2 * 1024**3
    max_variants: int = 2
    continued_max_bytes: int = 0
    continued_ttl_s: float = 3600.0
    tenant: str = ""
    published: str = ""
    arena_dir: str = ""

    def __post_init__(self) -> None:
        if self.address and not self.address.startswith("unix:"):
            _host_and_port("address", self.address)
        _at_least("max_bytes", self.max_bytes, 1)
        _at_least("max_variants", self.max_variants, 1)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How long a request waits for the cache service before it goes on without.

    Attributes
    ----------
    timeout_s
        Seconds for the small calls: open, evict, drop and stats.
    match_timeout_s
        Seconds for finding chunks; the service may have to embed some for it.
    fetch_timeout_s
        Seconds for handing over all K/V of a request.
    put_timeout_s
        Seconds for storing each 64 MiB of new K/V, after the answer has gone out.
    request_timeout_s
        Seconds that one request may wait for the cache in all: for what was put before it, finding and handing over.
    shared_memory
        Whether to read K/V in the memory of a cache service on this host; false has them sent.
    """

    timeout_s: float = 5.0
    match_timeout_s: float = 10.0
    fetch_timeout_s: float = 30.0
    put_timeout_s: float = 60.0
    request_timeout_s: float = 30.0
    shared_memory: bool = True

    def __post_init__(self) -> None:
        for name in ("timeout_s", "match_timeout_s", "fetch_timeout_s", "put_timeout_s", "request_timeout_s"):
            _seconds(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How the runtime service answers several requests at once.

    Attributes
    ----------
    max_batch
        Requests that are answered at the same time.
    max_queue
        Requests that wait beside those; further ones are refused at once.
    max_batch_bytes
        Bytes of K/V that requests under way may take together, each counted with its whole answer; further ones wait.
        0 takes half of the memory that is free once the model is loaded.
    prefill_tokens
        Prompt tokens of a new request that are computed between two tokens of running answers, at most.
    threads
        CPU threads that compute; 0 for one on each core that the process may keep busy, by its affinity and the CPU
        quota of its container.
    publishes
        Whether callers may publish documents for all tenants that read cache.published.
    """

    max_batch: int = 8
    max_queue: int = 64
    max_batch_bytes: int = 0
    prefill_tokens: int = 256
    threads: int = 0
    publishes: bool = False

    def __post_init__(self) -> None:
        _at_least("max_batch", self.max_batch, 1)
        _at_least("max_queue", self.max_queue, 0)
        _at_least("max_batch_bytes", self.max_batch_bytes, 0)
        _at_least("prefill_tokens", self.prefill_tokens, 1)
        _at_least("threads", self.threads, 0)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where the servers of this machine listen.

    Attributes
    ----------
    cache_address
        host:port of the cache service; port 0 takes a free one.
    cache_unix
        Path of the cache service's unix socket; empty for none.
    runtime_address
        host:port of the runtime service; port 0 takes a free one.
    runtime_unix
        Path of the runtime service's unix socket; empty for none.
    gateway_address
        host:port of the HTTP gateway; port 0 takes a free one.
    max_workers
        Threads of the cache service for each of look-ups, puts and fetches; eight times as many may wait.
    idle_timeout_s
        Seconds that a caller of the cache service may let a put or a fetch wait before it is ended.
    stream_timeout_s
        Seconds that a put or a fetch of the cache service may take in all.
    """

    cache_address: str = "127.0.0.1:7461"
    cache_unix: str = ""
    runtime_address: str = "127.0.0.1:7462"
    runtime_unix: str = ""
    gateway_address: str = "127.0.0.1:8000"
    max_workers: int = 8
    idle_timeout_s: float = 10.0
    stream_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        _host_and_port("cache_address", self.cache_address)
        _host_and_port("runtime_address", self.runtime_address)
        _host_and_port("gateway_address", self.gateway_address)
        _at_least("max_workers", self.max_workers, 1)
        _seconds("idle_timeout_s", self.idle_timeout_s)
        _seconds("stream_timeout_s", self.stream_timeout_s)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration, one field per section of the file."""

    model: ModelConfig = field(default_factory=ModelConfig)
    segment: SegmentConfig = field(default_factory=SegmentConfig)
    embedder: EmbedderConfig = field(default_factory=EmbedderConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    client: ClientConfig = field(default_factory=ClientConfig)
    policy: ReusePolicy = field(default_factory=ReusePolicy)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def __post_init__(self) -> None:
        if self.segment.boundaries == "embedding" and self.embedder.model == "none":
            raise ConfigError(
                "segment.boundaries 'embedding' needs an embedder; set embedder.model to auto or to a model"
            )


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} {value!r} is unknown; choose one of {', '.join(known)}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} {value} must be at least {least}")


def _seconds(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise ConfigError(f"{name} {value} must be a positive number of seconds")


def _host_and_port(name: str, value: str) -> None:
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ConfigError(f"{name} {value!r} must have the form host:port, with a port up to 65535")
