"""Memory of slabs, kept from one request to the next.

Memory that was never touched costs more to touch first than K/V cost to copy: 130 ms of CPU time for the 377 MB of
8,192 tokens of the demo model, against 25 ms for the copy. Large pages were no way out: on a machine that had run for
some hours one allocation in five took half a second.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from kvboost.runtime.kv.slab import SlabCache
from kvboost.types import KVLayout

# What is not needed is never touched and costs nothing, and a prompt that grows turn by turn finds room again.
STEP_TOKENS = 1024


class SlabPool:
    """Slabs for the requests of one model; the largest that came back is kept. Safe to use from several threads."""

    def __init__(self, layout: KVLayout, device: torch.device | str) -> None:
        self._layout = layout
        self._device = device
        self._lock = threading.Lock()
        self._spare: tuple[Tensor, Tensor] | None = None

    def take(self, tokens: int) -> SlabCache:
        """Return a slab for at least ``tokens`` positions; what it holds is left over from another request."""
        with self._lock:
            spare = self._spare
            if spare is not None and spare[0].shape[3] >= tokens:
                self._spare = None
            else:
                spare = None
        capacity = -(-tokens // STEP_TOKENS) * STEP_TOKENS
        return SlabCache(self._layout, capacity, self._device, buffers=spare)

    def give(self, slab: SlabCache) -> None:
        """Take back a slab that nobody reads any more; it is emptied."""
        buffers = (slab.key_slab, slab.value_slab)
        slab.layers.clear()
        with self._lock:
            if self._spare is None or self._spare[0].shape[3] < buffers[0].shape[3]:
                self._spare = buffers
