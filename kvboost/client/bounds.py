"""What a request to a runtime may take, checked before it is sent."""

from __future__ import annotations

from typing import Protocol

from kvboost.errors import PromptTooLongError

MAX_REQUEST_BYTES = 4 << 20
"""What gRPC's servers take in one message, unless told otherwise."""


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
