"""KVBoost errors as gRPC statuses, and back.

The server puts the class name into the trailing metadata; the client raises that class again with the same
sentence. A status without the name comes from gRPC itself or from something that the server hides: to a caller
the service is then unavailable.
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from kvboost import errors
from kvboost.errors import (
    CacheBusyError,
    CacheUnavailableError,
    DataLossError,
    InputError,
    KVBoostError,
    MessageSizeError,
    NamespaceError,
    QuotaError,
    RuntimeBusyError,
    RuntimeUnavailableError,
    SupportError,
    UnknownNamespaceError,
)

ERROR_KEY = "kvboost-error"
RETRY_KEY = "grpc-retry-pushback-ms"
"""gRPC's own key: milliseconds after which the same call may succeed."""

# The first row whose class fits decides, so subclasses stand before their parents.
_STATUS_OF: tuple[tuple[type[KVBoostError], grpc.StatusCode], ...] = (
    (InputError, grpc.StatusCode.INVALID_ARGUMENT),
    (UnknownNamespaceError, grpc.StatusCode.NOT_FOUND),
    (NamespaceError, grpc.StatusCode.FAILED_PRECONDITION),
    (SupportError, grpc.StatusCode.FAILED_PRECONDITION),
    (CacheBusyError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (CacheUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (RuntimeBusyError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (RuntimeUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (DataLossError, grpc.StatusCode.DATA_LOSS),
    (MessageSizeError, grpc.StatusCode.OUT_OF_RANGE),
    (QuotaError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (KVBoostError, grpc.StatusCode.INTERNAL),
)

_BUSY: dict[type[KVBoostError], type[KVBoostError]] = {
    CacheUnavailableError: CacheBusyError,
    RuntimeUnavailableError: RuntimeBusyError,
}


def status_of(error: KVBoostError) -> grpc.StatusCode:
    """Return the status that stands for ``error`` on the wire."""
    return next(code for kind, code in _STATUS_OF if isinstance(error, kind))


def trailer_of(error: KVBoostError) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata that names the class of ``error``, and when to come back."""
    named = (ERROR_KEY, type(error).__name__)
    if error.retry_after_s is None:
        return (named,)
    return named, (RETRY_KEY, str(int(1000 * error.retry_after_s)))


def error_of(
    failure: grpc.RpcError, address: str, unavailable: type[KVBoostError] = CacheUnavailableError
) -> KVBoostError:
    """Return the typed error for a failed call to the server at ``address``, ``unavailable`` if it named none."""
    trailer = dict(failure.trailing_metadata() or ())
    error = _error_of(failure, trailer, address, unavailable)
    pushback = str(trailer.get(RETRY_KEY, ""))
    if pushback.isdecimal():
        error.retry_after_s = int(pushback) / 1000
    return error


def _error_of(
    failure: grpc.RpcError, trailer: Mapping[str, str | bytes], address: str, unavailable: type[KVBoostError]
) -> KVBoostError:
    code, details = failure.code(), failure.details() or ""
    kind = getattr(errors, str(trailer.get(ERROR_KEY, "")), None)
    if isinstance(kind, type) and issubclass(kind, KVBoostError):
        return kind(details)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return unavailable(f"the server at {address} did not answer before the deadline")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and unavailable in _BUSY and RETRY_KEY in trailer:
        return _BUSY[unavailable](f"the server at {address} is busy: {details}")
    if code == grpc.StatusCode.CANCELLED:
        return unavailable(f"the server at {address} broke the call off: it is ending, or this side let it wait")
    return unavailable(f"the server at {address} failed the call with {code.name}: {details}")
