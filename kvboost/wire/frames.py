"""Frames of K/V on the wire, without the copies that a protobuf message costs.

A frame is an ordinary ``kvboost.v1.Frame``; any protobuf library reads and writes it. Generated code copies the
payload into a message and again out of it, which halves the throughput of a stream. Here it is joined once when
written, and a view of the received bytes when read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from typing_extensions import Buffer

from kvboost.errors import InputError
from kvboost.types import ChunkKV
from kvboost.v1 import cache_pb2

FRAME_BYTES = 1 << 20

_DATA_FIELD = cache_pb2.Frame.DATA_FIELD_NUMBER
_PUT_FRAME_FIELD = cache_pb2.PutRequest.FRAME_FIELD_NUMBER
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Frame:
    """A piece of one chunk's K/V; the fields are those of ``kvboost.v1.Frame``."""

    chunk: int
    offset: int
    data: Buffer
    total_bytes: int = 0
    checksum: int = 0
    handles: Sequence[cache_pb2.Handle] = ()


def split(chunk: int, payload: Buffer, checksum: int | None = None) -> Iterator[Frame]:
    """Yield the frames of one chunk; with a ``checksum``, the first announces it and the chunk's size."""
    view = memoryview(payload).cast("B")
    for offset in range(0, len(view), FRAME_BYTES):
        data = view[offset : offset + FRAME_BYTES]
        if offset == 0 and checksum is not None:
            yield Frame(chunk, offset, data, len(view), checksum)
        else:
            yield Frame(chunk, offset, data)


def split_parts(chunks: Sequence[ChunkKV], parts: int) -> Iterator[Frame]:
    """Yield the frames of several chunks: of all their first parts, then of all their second parts, and so on.

    Raises
    ------
    InputError
        If a chunk cannot be cut into so many equal parts.
    """
    views = [memoryview(chunk.payload).cast("B") for chunk in chunks]
    for chunk, view in zip(chunks, views, strict=True):
        if len(view) % parts:
            raise InputError(f"parts {parts} must divide the {len(view)} bytes of chunk {chunk.chunk_id}")
    for part in range(parts if views else 0):
        for chunk, view in zip(chunks, views, strict=True):
            start, end = (len(view) // parts * i for i in (part, part + 1))
            for offset in range(start, end, FRAME_BYTES):
                data = view[offset : min(offset + FRAME_BYTES, end)]
                announced = (len(view), chunk.checksum) if offset == 0 else (0, 0)
                yield Frame(chunk.chunk_id, offset, data, *announced)


def encode(frame: Frame | cache_pb2.Frame) -> bytes:
    """Return ``frame`` as a serialised ``kvboost.v1.Frame``."""
    if isinstance(frame, cache_pb2.Frame):
        return frame.SerializeToString()
    return b"".join(_parts(frame))


def decode(raw: bytes) -> Frame:
    """Read a serialised ``kvboost.v1.Frame``; ``data`` is a view of ``raw``.

    Raises
    ------
    InputError
        If the bytes are not such a message.
    """
    return _decode(memoryview(raw))


def encode_put(part: Frame | cache_pb2.PutHeader) -> bytes:
    """Return a header or a frame as a serialised ``kvboost.v1.PutRequest``."""
    if isinstance(part, cache_pb2.PutHeader):
        return cache_pb2.PutRequest(header=part).SerializeToString()
    parts = _parts(part)
    size = sum(len(p) for p in parts)
    return b"".join((_tag(_PUT_FRAME_FIELD, _LENGTH), _varint(size), *parts))


def decode_put(raw: bytes) -> Frame | cache_pb2.PutHeader:
    """Read a serialised ``kvboost.v1.PutRequest``.

    Raises
    ------
    InputError
        If the bytes are not such a message, or hold neither header nor frame.
    """
    view = memoryview(raw)
    frame: Frame | None = None
    for field, _, value in _fields(view):
        if field == _PUT_FRAME_FIELD and isinstance(value, memoryview):
            frame = _decode(value)
    if frame is not None:
        return frame
    try:
        message = cache_pb2.PutRequest.FromString(raw)
    except DecodeError as error:
        raise InputError("part of a Put is not a kvboost.v1.PutRequest message") from error
    if message.WhichOneof("part") != "header":
        raise InputError("part must hold a header or a frame")
    return message.header


def _parts(frame: Frame) -> tuple[bytes, bytes, bytes, memoryview]:
    """Serialise all small fields, then the key and length of ``data``, then the data itself."""
    head = cache_pb2.Frame(
        chunk=frame.chunk, offset=frame.offset, total_bytes=frame.total_bytes, checksum=frame.checksum
    )
    data = memoryview(frame.data).cast("B")
    return head.SerializeToString(), _tag(_DATA_FIELD, _LENGTH), _varint(len(data)), data


def _decode(view: memoryview) -> Frame:
    data = memoryview(b"")
    small = bytearray()
    at = 0
    for field, end, value in _fields(view):
        if field == _DATA_FIELD and isinstance(value, memoryview):
            data = value
        else:
            small += view[at:end]
        at = end
    try:
        head = cache_pb2.Frame.FromString(bytes(small))
    except DecodeError as error:
        raise InputError("a frame is not a kvboost.v1.Frame message") from error
    return Frame(head.chunk, head.offset, data, head.total_bytes, head.checksum, head.handles)


def _fields(view: memoryview) -> Iterator[tuple[int, int, memoryview | None]]:
    """Walk the top-level fields: number, end of the field, and the bytes of a length-delimited one."""
    at, size = 0, len(view)
    while at < size:
        key, at = _read_varint(view, at)
        kind = key & 7
        value: memoryview | None = None
        if kind == _VARINT:
            _, at = _read_varint(view, at)
        elif kind == _LENGTH:
            length, at = _read_varint(view, at)
            value = view[at : at + length]
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise InputError(f"a frame holds a field of the unknown wire type {kind}")
        if at > size:
            raise InputError("a frame ends in the middle of a field")
        yield key >> 3, at, value


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise InputError("a frame ends in the middle of a number")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise InputError("a frame holds a number of more than 64 bits")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)
