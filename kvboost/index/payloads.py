"""Where the bytes of stored chunks lie: the interface, and the plain answer to it."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kvboost.errors import QuotaError

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of memory that belongs to one namespace, and that others can have once nothing is in it."""

    name: str
    namespace: str
    nbytes: int


class PayloadAllocator(Protocol):
    """Gives out memory for payloads. Safe to use from several threads."""

    def allocate(self, namespace: str, nbytes: int, grow: bool = True) -> Bytes:
        """Return ``nbytes`` writable bytes that are nobody else's.

        They stay so until the array and every buffer taken from it are gone; nothing else gives them back. Without
        ``grow`` only memory that the namespace has already will do.

        Raises
        ------
        QuotaError
            If there is no room now. Letting go of other payloads makes some.
        """
        ...

    def holds(self, namespace: str, payload: memoryview) -> bool:
        """Return whether ``payload`` lies in memory given out for ``namespace``, so that it need not be copied."""
        ...

    def region_of(self, payload: memoryview) -> str | None:
        """Return the name of the region that ``payload`` lies in; None where memory has none."""
        ...

    def close_sparsest(self, namespace: str, tried: Container[str]) -> Region | None:
        """Give out nothing more of the region not in ``tried`` that holds least for its size, and name it.

        Whoever moves or drops what is in it makes room for every namespace. It is for ``namespace``, whose own regions
        come last.
        """
        ...

    def lingers(self, region: str) -> bool:
        """Return whether somebody still holds memory of a region that was closed."""
        ...

    @property
    def returned(self) -> int:
        """How often memory came back so far: while that does not change, what was refused is refused again."""
        ...

    def forget(self, namespace: str) -> None:
        """Give the memory of a namespace back to the system as soon as its payloads are gone."""
        ...

    def close(self) -> None:
        """Hand out nothing more. Arrays given out stay valid."""
        ...


class ProcessMemory:
    """Ordinary memory of this process; the system's own limit is the only one."""

    returned = 0

    def allocate(self, namespace: str, nbytes: int, grow: bool = True) -> Bytes:
        """Return fresh memory."""
        return np.empty(nbytes, dtype=np.uint8)

    def holds(self, namespace: str, payload: memoryview) -> bool:
        """Return False: the caller may change its memory."""
        return False

    def region_of(self, payload: memoryview) -> None:
        """Return None: every payload has memory of its own."""

    def close_sparsest(self, namespace: str, tried: Container[str]) -> None:
        """Return None: no memory waits for anybody."""

    def lingers(self, region: str) -> bool:
        """Return False: there are no regions."""
        return False

    def forget(self, namespace: str) -> None:
        """Do nothing: memory goes back with its array."""

    def close(self) -> None:
        """Do nothing."""


def copied_in(
    allocator: PayloadAllocator, namespace: str, payload: Buffer, make_room: Callable[[], bool]
) -> memoryview:
    """Return a read-only copy of ``payload`` in memory of ``allocator``, or itself if it lies there, read-only.

    Memory in pieces is no reason to refuse what the budget can take: ``make_room`` is called until there is room.

    Raises
    ------
    QuotaError
        If ``make_room`` returns False: no memory is to be had, since readers hold what left before.
    """
    view = memoryview(payload).cast("B")
    if view.readonly and allocator.holds(namespace, view):
        return view
    source = np.frombuffer(view, dtype=np.uint8)
    while True:
        try:
            memory = allocator.allocate(namespace, source.nbytes)
            break
        except QuotaError:
            if not make_room():
                raise
    memory[:] = source
    return memory.data.toreadonly()
