"""Memory for whoever needs it: pieces that others left half empty are cleared.

Regions belong to one namespace. What its chunks leave free when they go serves that namespace alone, until a whole
region is empty. So where a put finds no memory, the region that holds least is emptied: its chunks move to where
their namespace has room, and only those that find none leave the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvboost.index.payloads import PayloadAllocator
from kvboost.index.room import Room

# Regions that a put may empty in vain, because somebody reads what lies there.
_MAX_IN_VAIN = 2


class Vacating:
    """Makes room in the memory of all namespaces. Safe to use from several threads.

    Parameters
    ----------
    rooms
        By the key of their namespace.
    """

    def __init__(self, allocator: PayloadAllocator, rooms: Mapping[str, Room]) -> None:
        self._allocator = allocator
        self._rooms = rooms
        self._returned_at_refusal = -1

    def for_put(self, namespace: str, nbytes: int) -> Callable[[], bool]:
        """Return what makes room for ``nbytes`` of a namespace, region by region.

        It returns False where more would be no use: a put that cannot be served must not empty the cache. So it ends
        after a few regions whose memory did not come back, after regions of twice the size that should have been
        enough, and at once while nothing came back since a put was refused.
        """
        in_vain: set[str] = set()
        cleared_bytes = 0

        def make_room() -> bool:
            nonlocal cleared_bytes
            if self._allocator.returned == self._returned_at_refusal:
                return False
            region = self._allocator.close_sparsest(namespace, in_vain)
            if region is None or len(in_vain) >= _MAX_IN_VAIN or cleared_bytes >= 2 * (nbytes + region.nbytes):
                self._returned_at_refusal = self._allocator.returned
                return False
            room = self._rooms.get(region.namespace)
            if room is not None:
                room.vacate(region.name)
            if self._allocator.lingers(region.name):
                in_vain.add(region.name)
            else:
                cleared_bytes += region.nbytes
            return True

        return make_room
