"""A vector index on disk: one file, whole or refused.

Layout, little-endian: the magic bytes, a header (length, then JSON: format, embedder, dim), then pieces (rows, ids,
vectors) until one of no rows, and last the xxh3 of all before it.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from kvboost.errors import IndexFileError
from kvboost.index.vectors import VectorIndex
from kvboost.index.vectors_rows import Piece

FORMAT = 1
MAGIC = b"KVBVEC\r\n"
_LENGTH = struct.Struct("<I")
_PIECE = struct.Struct("<I")
_SUM = struct.Struct("<Q")
_MAX_HEADER = 1 << 20
_MAX_PIECE_BYTES = 1 << 24


def save(index: VectorIndex, path: Path, embedder: str) -> int:
    """Write the rows of ``index`` and return how many; what stands at ``path`` is replaced as a whole.

    The index stays in use meanwhile: rows that come, leave or change before the end may or may not be in the file.

    Parameters
    ----------
    embedder
        Name of the embedder whose vectors these are; only the same one can read them again.

    Raises
    ------
    IndexFileError
        If the file cannot be written; what stood there stays.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            try:
                rows = _write(index, _Summed(file), embedder)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise IndexFileError(f"vector index {path} cannot be written ({error.strerror}); give another place") from error
    return rows


def load(path: Path, embedder: str, dim: int) -> VectorIndex:
    """Return the index that was saved.

    Raises
    ------
    IndexFileError
        If there is no such file, or it is no vector index, damaged, of another format, embedder or dimension.
    """
    try:
        with path.open("rb") as file:
            return _read(_Summed(file), path, embedder, dim)
    except OSError as error:
        raise IndexFileError(f"vector index {path} cannot be read ({error.strerror}); build it anew") from error


class _Summed:
    """Reads or writes, and keeps the checksum of what went through."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sum = xxhash.xxh3_64()

    def write(self, data: bytes) -> None:
        self._sum.update(data)
        self._file.write(data)

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise _DamagedError("it ends too early")
        self._sum.update(data)
        return data

    def at_end(self) -> bool:
        return not self._file.read(1)

    @property
    def digest(self) -> int:
        return self._sum.intdigest()


class _DamagedError(Exception):
    """The bytes are not those that were written."""


def _write(index: VectorIndex, file: _Summed, embedder: str) -> int:
    text = json.dumps({"format": FORMAT, "embedder": embedder, "dim": index.dim}).encode()
    file.write(MAGIC + _LENGTH.pack(len(text)) + text)
    rows = 0
    for piece in index.pieces():
        for part in _parts(piece):
            file.write(_PIECE.pack(len(part.ids)))
            file.write(_bytes(part.ids))
            file.write(_bytes(part.rows))
            rows += len(part.ids)
    file.write(_PIECE.pack(0))
    file.write(_SUM.pack(file.digest))
    return rows


def _parts(piece: Piece) -> Iterator[Piece]:
    """Cut a piece up, so that no length in a damaged file can ask for much memory."""
    size = max(1, _MAX_PIECE_BYTES // (2 * piece.rows.itemsize * piece.rows.shape[1]))
    for start in range(0, len(piece.ids), size):
        yield Piece(piece.ids[start : start + size], piece.rows[start : start + size])


def _read(file: _Summed, path: Path, embedder: str, dim: int) -> VectorIndex:
    try:
        header = _header(file, path)
        for name, found, wanted in (("embedder", header["embedder"], embedder), ("dim", header["dim"], dim)):
            if found != wanted:
                raise IndexFileError(f"vector index {path} is of {name} {found!r}, not {wanted!r}; build it anew")
        index = VectorIndex(dim)
        for piece in _pieces(file, dim):
            index.insert(piece)
        digest = file.digest
        if file.read(_SUM.size) != _SUM.pack(digest) or not file.at_end():
            raise _DamagedError("its checksum differs")
    except (_DamagedError, KeyError, TypeError, ValueError) as error:
        raise IndexFileError(f"vector index {path} is damaged: {error}; remove it and build it anew") from error
    return index


def _header(file: _Summed, path: Path) -> dict[str, Any]:
    try:
        magic = file.read(len(MAGIC))
    except _DamagedError:
        magic = b""
    if magic != MAGIC:
        raise IndexFileError(f"{path} is no vector index of KVBoost; give another file, or build the index anew")
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    if length > _MAX_HEADER:
        raise _DamagedError("its header has no sensible length")
    header: dict[str, Any] = json.loads(file.read(length))
    if header["format"] != FORMAT:
        raise IndexFileError(f"vector index {path} has format {header['format']}, not {FORMAT}; build it anew")
    return header


def _pieces(file: _Summed, dim: int) -> Iterator[Piece]:
    while True:
        (count,) = _PIECE.unpack(file.read(_PIECE.size))
        if count == 0:
            return
        if count * dim * 4 > _MAX_PIECE_BYTES:
            raise _DamagedError("a piece has no sensible size")
        ids = np.frombuffer(file.read(8 * count), "<i8").astype(np.int64)
        if ids.min() < 0:
            raise _DamagedError("an id is negative")
        rows = np.frombuffer(file.read(4 * count * dim), "<f4").astype(np.float32)
        yield Piece(ids, rows.reshape(count, dim))


def _bytes(array: np.ndarray[Any, Any]) -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
