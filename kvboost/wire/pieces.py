"""Messages that are larger than gRPC lets one be, in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from kvboost.errors import InputError, MessageSizeError
from kvboost.v1 import cache_pb2 as pb

MAX_MESSAGE_BYTES = 4 << 20
"""What gRPC takes in one message, unless told otherwise."""
MAX_LARGE_BYTES = 64 << 20
"""What either end takes in pieces: the look-up of some ten million tokens."""
_PIECE_BYTES = 1 << 20


class Message(Protocol):
    """A message of protobuf."""

    def ByteSize(self) -> int:  # noqa: N802
        """Return how many bytes it has on the wire."""
        ...

    def SerializeToString(self) -> bytes:  # noqa: N802
        """Return these bytes."""
        ...


def is_large(message: Message) -> bool:
    """Return whether ``message`` has to go in pieces."""
    return message.ByteSize() > MAX_MESSAGE_BYTES


def check_size(message: Message, what: str, most: int, remedy: str) -> None:
    """Refuse a message of more than ``most`` bytes.

    Raises
    ------
    MessageSizeError
        Naming ``what`` is too large, and the ``remedy``.
    """
    if (size := message.ByteSize()) > most:
        raise MessageSizeError(f"{what} takes {size:,} bytes, {most:,} are the most; {remedy}")


def split(message: Message, method: str = "") -> Iterator[pb.Piece]:
    """Yield the pieces of ``message``, one at least; the first names the ``method``."""
    data = message.SerializeToString()
    for start in range(0, max(1, len(data)), _PIECE_BYTES):
        yield pb.Piece(method="" if start else method, data=data[start : start + _PIECE_BYTES])


def join(pieces: Iterable[pb.Piece]) -> tuple[str, bytes]:
    """Return the method that the first piece names, and the bytes of all of them.

    Raises
    ------
    MessageSizeError
        As soon as there are more than either end takes.
    InputError
        If there is no piece.
    """
    method: str | None = None
    data = bytearray()
    for piece in pieces:
        method = piece.method if method is None else method
        data += piece.data
        if len(data) > MAX_LARGE_BYTES:
            raise MessageSizeError(f"a message takes more than {MAX_LARGE_BYTES:,} bytes; ask for less at a time")
    if method is None:
        raise InputError("pieces are missing: a message consists of one at least")
    return method, bytes(data)
