"""Where the bytes of stored chunks lie: the interface, and the plain answer to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kvboost.errors import QuotaError

Bytes = npt.NDArray[np.uint8]


class PayloadAllocator(Protocol):
    """Gives out memory for payloads. Safe to use from several threads."""

    def allocate(self, namespace: str, nbytes: int) -> Bytes:
        """Return ``nbytes`` writable bytes that are nobody else's.

        They stay so until the array and every buffer taken from it are gone; nothing else gives them back.

        Raises
        ------
        QuotaError
            If there is no room now. Letting go of other payloads makes some.
        """
        ...

    def holds(self, namespace: str, payload: memoryview) -> bool:
        """Return whether ``payload`` lies in memory given out for ``namespace``, so that it need not be copied."""
        ...

    def forget(self, namespace: str) -> None:
        """Give the memory of a namespace back to the system as soon as its payloads are gone."""
        ...

    def close(self) -> None:
        """Hand out nothing more. Arrays given out stay valid."""
        ...


class ProcessMemory:
    """Ordinary memory of this process; the system's own limit is the only one."""

    def allocate(self, namespace: str, nbytes: int) -> Bytes:
        """Return fresh memory."""
        return np.empty(nbytes, dtype=np.uint8)

    def holds(self, namespace: str, payload: memoryview) -> bool:
        """Return False: the caller may change its memory."""
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
        If ``make_room`` returns False: nothing is left to evict, and readers hold what left before.
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
