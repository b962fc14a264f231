"""What a message can hold, checked before it is made or sent."""

from __future__ import annotations

from typing import Protocol

from kvboost.errors import InputError, PromptTooLongError

MAX_REQUEST_BYTES = 4 << 20
"""What gRPC's servers take in one message, unless told otherwise."""
MAX_COUNT = (1 << 32) - 1


class Sized(Protocol):
    """A message of protobuf."""

    def ByteSize(self) -> int:  # noqa: N802
        """Return how many bytes it has on the wire."""
        ...


def check_size(request: Sized, what: str, remedy: str) -> None:
    """Refuse a request that the service would not take.

    Raises
    ------
    PromptTooLongError
        Naming ``what`` is too long, and the ``remedy``.
    """
    if (size := request.ByteSize()) > MAX_REQUEST_BYTES:
        raise PromptTooLongError(f"{what} takes {size:,} bytes, a request holds {MAX_REQUEST_BYTES:,}; {remedy}")


def check_count(value: object, field: str) -> int:
    """Return ``value`` if an unsigned 32-bit field can hold it.

    Raises
    ------
    InputError
        Naming ``field``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{field} must be a whole number, not {type(value).__name__}")
    if not 0 <= value <= MAX_COUNT:
        raise InputError(f"{field} must lie in [0, 2**32)")
    return value
