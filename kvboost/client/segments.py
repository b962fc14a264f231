"""Files of the cache server, mapped to read."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvboost.errors import CacheUnavailableError
from kvboost.mapping import map_shared
from kvboost.v1 import cache_pb2 as pb

# Where the server keeps the number that says whose the bytes are: so many bytes before a payload.
GENERATION_BYTES = 64
_GENERATION = struct.Struct("<Q")


class SegmentError(CacheUnavailableError):
    """What a handle names cannot be read here; the server may be well, and send it."""


class SegmentMaps:
    """Maps the segments of one directory as handles name them. Not safe for use from several threads.

    A mapping is kept until its file is gone, and its memory until the last view of it is: nothing that the server
    does, ending included, takes it away.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps: dict[str, memoryview] = {}

    def view(self, handle: pb.Handle) -> tuple[npt.NDArray[np.uint8], memoryview]:
        """Return the bytes that ``handle`` names, read-only and not copied, and the whole mapping that they are of.

        Raises
        ------
        SegmentError
            If they are not there.
        """
        memory = self._map(handle.segment)
        if not GENERATION_BYTES <= handle.offset <= handle.offset + handle.nbytes <= len(memory):
            raise SegmentError(f"segment {handle.segment} ends before the chunk that it should hold")
        if generation(memory, handle) != handle.generation:
            raise SegmentError(f"segment {handle.segment} holds another chunk by now")
        return np.frombuffer(memory, np.uint8, handle.nbytes, handle.offset), memory

    def new(self, namespace: str) -> list[npt.NDArray[np.uint8]]:
        """Map the segments of a namespace that are not mapped yet; return the whole of each."""
        found = []
        for file in self._directory.glob(f"{namespace}-*.kv"):
            if file.name not in self._maps:
                found.append(np.frombuffer(self._map(file.name), np.uint8))
        return found

    def forget_gone(self) -> None:
        """Let go of the mappings whose files were removed, or they would keep the memory."""
        for name in [name for name in self._maps if not (self._directory / name).exists()]:
            del self._maps[name]

    def clear(self) -> None:
        """Let go of every mapping; each lasts as long as its views."""
        self._maps.clear()

    def _map(self, name: str) -> memoryview:
        known = self._maps.get(name)
        if known is not None:
            return known
        if Path(name).name != name:
            raise SegmentError(f"segment {name!r} is no name of a file")
        try:
            file = os.open(self._directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                self._maps[name] = map_shared(file, os.fstat(file).st_size, writable=False)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            raise SegmentError(f"segment {name} of the cache server cannot be mapped: {error}") from error
        return self._maps[name]


def generation(memory: memoryview, handle: pb.Handle) -> int:
    """Return the number that stands before the bytes of ``handle``."""
    number: int = _GENERATION.unpack_from(memory, handle.offset - GENERATION_BYTES)[0]
    return number
