"""Which chunks the clients of this host are reading in shared memory.

A pin is a reference to the chunk: as long as it is here, the arena gives the chunk's bytes to nobody else, whether
the cache evicts the chunk or not.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from kvboost.errors import CacheUnavailableError, QuotaError
from kvboost.types import ChunkKV
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire.assemble import Bytes, empty

if TYPE_CHECKING:
    from kvboost.index.arena import Arena, Extent

MAX_LEASES = 32
_CHUNKS_ON_THEIR_WAY = 32  # at least, in the memory that leases may pin


@dataclass(slots=True)
class _Pin:
    chunk: ChunkKV
    nbytes: int
    until_s: float


@dataclass(slots=True)
class _Lease:
    pins: dict[int, _Pin] = field(default_factory=dict)
    nbytes: int = 0
    last_pin: int = 0


class Leases:
    """The leases of one arena. Safe to use from several threads.

    Parameters
    ----------
    arena
        Where the payloads of the served cache lie.
    max_lease_bytes
        What one lease may pin; chunks beyond it are sent as frames.
    max_bytes
        What all of them may pin together.
    max_leases
        Clients that may hold a lease at a time; each takes a thread.
    pin_s
        Seconds that a pin lasts without word from its client. For clients that hang; those that die end their stream.
    """

    def __init__(
        self,
        arena: Arena,
        max_lease_bytes: int,
        max_bytes: int,
        *,
        max_leases: int = MAX_LEASES,
        pin_s: float = 60.0,
    ) -> None:
        self.max_leases = max_leases
        self._arena = arena
        self._max_lease_bytes = max_lease_bytes
        self._max_bytes = max_bytes
        self._pin_s = pin_s
        self._lock = threading.Lock()
        self._leases: dict[str, _Lease] = {}
        self._nbytes = 0
        self._closed = False

    @property
    def pinned_bytes(self) -> int:
        """Bytes pinned now, over all leases."""
        return self._nbytes

    def open(self) -> pb.LeaseResponse:
        """Begin a lease.

        Raises
        ------
        QuotaError
            If there are too many.
        CacheUnavailableError
            If the server is ending.
        """
        directory = self._arena.directory
        with self._lock:
            if self._closed:
                raise CacheUnavailableError("the cache server is ending; ask again later")
            if len(self._leases) >= self.max_leases:
                raise QuotaError(f"{self.max_leases} clients hold a lease already; fetch without one")
            name = secrets.token_hex(16)
            self._leases[name] = _Lease()
        return pb.LeaseResponse(
            lease=name,
            directory=str(directory.path),
            proof_file=directory.PROOF_NAME,
            proof=directory.proof,
            pin_s=self._pin_s,
        )

    def memory(self, namespace: str, nbytes: int) -> Bytes:
        """Return memory of the arena for a chunk that is on its way in; ordinary memory while the arena is full.

        A large chunk is read into ordinary memory too: it is announced, and may never come.
        """
        if nbytes > self._max_bytes // _CHUNKS_ON_THEIR_WAY:
            return empty(nbytes)
        try:
            return self._arena.allocate(namespace, nbytes)
        except QuotaError:
            return empty(nbytes)

    def end(self, name: str) -> None:
        """End a lease and all its pins; one that is unknown is none."""
        with self._lock:
            lease = self._leases.pop(name, None)
            if lease is not None:
                self._release(lease, list(lease.pins))

    def close(self) -> None:
        """End every lease, and begin no more."""
        with self._lock:
            self._closed = True
            names = list(self._leases)
        for name in names:
            self.end(name)

    def pin(self, name: str, chunks: Iterable[ChunkKV]) -> tuple[list[pb.Handle], Iterator[ChunkKV]]:
        """Pin the first of ``chunks`` that the lease has room for; return their handles, and the chunks left."""
        handles: list[pb.Handle] = []
        left = iter(chunks)
        with self._lock:
            self._expire()
        for chunk in left:
            payload = memoryview(chunk.payload)
            block = self._arena.block_of(payload)
            pin = self._pin(name, chunk, block.nbytes) if block is not None else None
            if block is None or pin is None:
                return handles, chain([chunk], left)
            handles.append(_handle(chunk, block, pin))
        return handles, iter(())

    def hear(self, name: str, released: Sequence[int], held: Sequence[int]) -> None:
        """Take a client's word on which pins it released and which it still reads."""
        with self._lock:
            lease = self._leases.get(name)
            if lease is not None:
                self._release(lease, released)
                until_s = time.monotonic() + self._pin_s
                for number in held:
                    if number in lease.pins:
                        lease.pins[number].until_s = until_s

    def expire(self) -> None:
        """End the pins that were not heard of for too long."""
        with self._lock:
            self._expire()

    def _pin(self, name: str, chunk: ChunkKV, nbytes: int) -> int | None:
        with self._lock:
            lease = self._leases.get(name)
            if (
                lease is None
                or lease.nbytes + nbytes > self._max_lease_bytes
                or self._nbytes + nbytes > self._max_bytes
            ):
                return None
            lease.last_pin += 1
            lease.pins[lease.last_pin] = _Pin(chunk, nbytes, time.monotonic() + self._pin_s)
            lease.nbytes += nbytes
            self._nbytes += nbytes
            return lease.last_pin

    def _release(self, lease: _Lease, pins: Iterable[int]) -> None:
        for number in pins:
            pin = lease.pins.pop(number, None)
            if pin is not None:
                lease.nbytes -= pin.nbytes
                self._nbytes -= pin.nbytes

    def _expire(self) -> None:
        now_s = time.monotonic()
        for lease in self._leases.values():
            self._release(lease, [number for number, pin in lease.pins.items() if pin.until_s < now_s])


def _handle(chunk: ChunkKV, block: Extent, pin: int) -> pb.Handle:
    return pb.Handle(
        chunk=chunk.chunk_id,
        pin=pin,
        segment=block.segment,
        offset=block.offset,
        nbytes=block.nbytes,
        generation=block.generation,
        checksum=chunk.checksum,
    )
