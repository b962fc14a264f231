"""Memory of slabs, kept from one request to the next.

Memory that was never touched costs more to touch first than K/V cost to copy: 130 ms of CPU time for the 377 MB of
8,192 tokens of the demo model, against 25 ms for the copy. Large pages were no way out: on a machine that had run for
some hours one allocation in five took half a second. Other devices have an allocator in torch that keeps memory, so
there nothing is kept here.

What is kept is bounded three ways. A slab serves only requests that need at least a quarter of it: were a short prompt
given the slab of 131,072 tokens (6 GB on the demo model), the next long one would touch new memory all the same, and
both would be held. Slabs together take ``KEPT_BYTES``, the ones that came back last, or are a single larger one. And
what nobody took for ``IDLE_S`` goes back to the system: by then its next use saves less than other programs lose.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvboost.runtime.kv.slab import SlabCache
from kvboost.types import KVLayout

# What is not needed is never touched and costs nothing, and a prompt that grows turn by turn finds room again.
STEP_TOKENS = 1024
LARGEST_FIT = 4
KEPT_BYTES = 1 << 30
IDLE_S = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class _Spare:
    """Keys and values of a slab that nobody uses, and since when."""

    buffers: tuple[Tensor, Tensor]
    since_s: float

    @property
    def tokens(self) -> int:
        return self.buffers[0].shape[3]

    @property
    def nbytes(self) -> int:
        return sum(each.numel() * each.element_size() for each in self.buffers)


class SlabPool:
    """Slabs for the requests of one model. Safe to use from several threads.

    Parameters
    ----------
    clock
        Seconds that only go forward.
    """

    def __init__(
        self, layout: KVLayout, device: torch.device | str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._layout = layout
        self._device = torch.device(device)
        self._clock = clock
        self._lock = threading.Lock()
        self._spares: list[_Spare] = []
        self._sweeping = False

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for later requests."""
        with self._lock:
            return sum(spare.nbytes for spare in self._spares)

    def take(self, tokens: int) -> SlabCache:
        """Return a slab for at least ``tokens`` positions; what it holds is left over from another request."""
        capacity = -(-tokens // STEP_TOKENS) * STEP_TOKENS
        with self._lock:
            self._let_go()
            fitting = [spare for spare in self._spares if tokens <= spare.tokens <= LARGEST_FIT * capacity]
            best = min(fitting, key=lambda spare: spare.tokens, default=None)
            if best is not None:
                self._spares.remove(best)
        return SlabCache(self._layout, capacity, self._device, buffers=None if best is None else best.buffers)

    def give(self, slab: SlabCache) -> None:
        """Take back a slab that nobody reads any more; it is emptied."""
        buffers = (slab.key_slab, slab.value_slab)
        slab.layers.clear()
        if self._device.type != "cpu":
            return
        with self._lock:
            self._spares.append(_Spare(buffers, self._clock()))
            self._let_go()
            if not self._sweeping:
                self._sweeping = True
                _sweep_later(weakref.ref(self))

    def sweep(self) -> bool:
        """Let go what nobody took for a while; return whether something is left."""
        with self._lock:
            self._let_go()
            self._sweeping = bool(self._spares)
            return self._sweeping

    def _let_go(self) -> None:
        oldest_s = self._clock() - IDLE_S
        self._spares = [spare for spare in self._spares if spare.since_s > oldest_s]
        while len(self._spares) > 1 and sum(spare.nbytes for spare in self._spares) > KEPT_BYTES:
            self._spares.pop(0)


def _sweep_later(pool: weakref.ref[SlabPool]) -> None:
    """Sweep when the time has come, also where no request comes any more; without keeping the pool alive."""

    def sweep() -> None:
        known = pool()
        if known is not None and known.sweep():
            _sweep_later(pool)

    timer = threading.Timer(IDLE_S, sweep)
    timer.daemon = True
    timer.name = "kvboost-slabs"
    timer.start()
