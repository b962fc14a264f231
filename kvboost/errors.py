"""The errors that KVBoost raises.

::

    KVBoostError
    ├── InputError (also ValueError)     something the caller passed is wrong
    │   ├── PromptError                  a prompt that cannot be answered
    │   │   ├── EmptyPromptError         it has no token
    │   │   └── PromptTooLongError       it is longer than the model's context, or than a request may be
    │   ├── PolicyError                  a reuse policy with a value out of range, e.g. the threshold
    │   ├── ConfigError                  a configuration file, variable or argument that does not fit
    │   └── TensorError                  K/V of the wrong dtype, shape or byte count; a bad embedding
    │       └── NonFiniteError           K/V that are infinite or not a number
    ├── SupportError                     this cannot be done right with this model or tokenizer
    │   ├── ModelSupportError
    │   └── TokenizerError
    ├── NamespaceError
    │   ├── UnknownNamespaceError        the cache does not know the namespace (yet)
    │   └── LayoutMismatchError          the namespace is known with another layout
    ├── CacheUnavailableError            the cache is dead, unreachable or slower than its deadline
    │   └── CacheBusyError               it is full; the same call may succeed later
    ├── RuntimeUnavailableError          the runtime service is dead, unreachable, full or slower than its deadline
    │   └── RuntimeBusyError             it is full; the same call may succeed later
    ├── LateFetchError                   K/V stopped coming, or came damaged, after the pass over them had begun
    ├── DataLossError                    bytes were lost on the way or in the store
    │   ├── TruncatedStreamError
    │   └── ChecksumError
    ├── MessageSizeError                 a request or an answer is larger than the service carries
    ├── IndexFileError                   a saved vector index is damaged, or of another embedder or format
    ├── QuotaError                       the byte budget cannot take what was offered
    ├── StoringError                     new chunks could not be stored, through no fault of the cache
    ├── AssetError                       a model file could not be had from the package registry
    ├── MissingExtraError (also ImportError)         a part of the package that was not installed
    └── UnsupportedVersionError (also ImportError)   a library that it stands on is too old or too new

Inside a request none of these reaches the caller of ``generate()``, apart from :class:`InputError`: the
request falls back to full prefill, with a :class:`FallbackWarning` and a counter.
"""

from __future__ import annotations


class KVBoostError(Exception):
    """Root of all errors raised by KVBoost. The text is one sentence that names the field and the remedy.

    Attributes
    ----------
    retry_after_s
        Seconds after which the same call may succeed; None where nobody said so.
    """

    retry_after_s: float | None = None


class InputError(KVBoostError, ValueError):
    """Something the caller passed is wrong."""


class PromptError(InputError):
    """The prompt cannot be answered."""


class EmptyPromptError(PromptError):
    """The prompt has no token to go on from."""


class PromptTooLongError(PromptError):
    """The prompt is longer than the model's context, or than a request may be."""


class PolicyError(InputError):
    """A reuse policy holds a value that is out of range or unknown."""


class ConfigError(InputError):
    """A configuration file, environment variable or argument does not fit."""


class TensorError(InputError):
    """K/V bytes or an embedding have the wrong dtype, shape, size or values."""


class NonFiniteError(TensorError):
    """K/V are infinite or not a number.

    Attributes
    ----------
    chunk_id
        The stored chunk, or None where it is not known, or not stored.
    """

    def __init__(self, message: str, chunk_id: int | None = None) -> None:
        super().__init__(message)
        self.chunk_id = chunk_id


class SupportError(KVBoostError):
    """Something cannot be done right with this model or tokenizer, so it is refused."""


class ModelSupportError(SupportError):
    """The model's K/V cannot be cached or re-aligned."""


class TokenizerError(SupportError):
    """The tokenizer cannot map characters to tokens."""


class NamespaceError(KVBoostError):
    """A namespace does not fit."""


class UnknownNamespaceError(NamespaceError):
    """The cache has not been told about this namespace; ``open()`` it first."""


class LayoutMismatchError(NamespaceError):
    """The namespace is known, with another K/V layout."""


class CacheUnavailableError(KVBoostError):
    """The cache is dead, unreachable, or slower than its deadline."""


class CacheBusyError(CacheUnavailableError):
    """The cache service has as many calls of one kind as it may; the same call may succeed later."""


class LateFetchError(KVBoostError):
    """K/V stopped coming, or came damaged, after the pass over them had begun; the cause is the error itself."""


class RuntimeUnavailableError(KVBoostError):
    """The runtime service is dead, unreachable, full, or slower than its deadline."""


class RuntimeBusyError(RuntimeUnavailableError):
    """The runtime service has as many requests as it may; the same call may succeed later."""


class DataLossError(KVBoostError):
    """Bytes were lost on the way or in the store."""


class TruncatedStreamError(DataLossError):
    """A stream of K/V frames ended before the announced number of bytes."""


class ChecksumError(DataLossError):
    """The checksum of a chunk's K/V does not match its bytes.

    Attributes
    ----------
    chunk_id
        The damaged chunk, or None where it is not known.
    """

    def __init__(self, message: str, chunk_id: int | None = None) -> None:
        super().__init__(message)
        self.chunk_id = chunk_id


class MessageSizeError(KVBoostError):
    """A request or an answer is larger than the service carries; it names what to ask less of."""


class IndexFileError(KVBoostError):
    """A saved vector index is damaged, or of another embedder, dimension or format; or it cannot be written."""


class QuotaError(KVBoostError):
    """The byte budget cannot take what was offered."""


class StoringError(KVBoostError):
    """New chunks could not be stored, and not through a fault of the cache; the cause is the error itself."""


class AssetError(KVBoostError):
    """A model file could not be had from the package registry, or is not the one that was expected."""


class MissingExtraError(KVBoostError, ImportError):
    """A part of the package was left out when it was installed; the sentence tells how to add it."""


class UnsupportedVersionError(KVBoostError, ImportError):
    """A library that the package stands on is too old or too new; the sentence tells which version does."""


class KVBoostWarning(UserWarning):
    """Root of the warnings issued by KVBoost."""


class FallbackWarning(KVBoostWarning):
    """A cache fault made a request fall back to full prefill; its answer is not affected."""
