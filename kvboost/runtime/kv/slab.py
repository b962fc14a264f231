"""The request's K/V: one preallocated slab that transformers uses as its cache.

Reused K/V are placed at their positions, the positions in between are filled by one forward pass whose K/V
are written where they belong (a splice), and decoding appends into the head room without growing by
concatenation.
"""

from __future__ import annotations

import math
import mmap
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from kvboost.errors import KVBoostError
from kvboost.runtime.attention.transformers_api import DynamicLayer
from kvboost.runtime.kv.codec import TORCH_DTYPES
from kvboost.runtime.kv.residual_shift import LayerShift
from kvboost.types import KVLayout, Span

HEAD_ROOM_TOKENS = 64


@dataclass(frozen=True, slots=True)
class SplicePass:
    """One forward pass over scattered tokens.

    Attributes
    ----------
    positions
        ``[Q]``, ascending, where the pass writes its K/V.
    length
        Cache length that attention sees during the pass: keys ``[0, length)``.
    shifts
        Residual shift by layer, or None.
    layers
        How many layers the pass runs through before it ends with :class:`PassEnded`; all if None.
    """

    positions: Tensor
    length: int
    shifts: Sequence[LayerShift | None] | None = None
    layers: int | None = None


class PassEnded(Exception):  # noqa: N818
    """Ends a pass that was to run through some of the layers only; not an error."""


class LayerGate:
    """Which layers of a slab are in place; holds back whoever comes to one that is not."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._layers = 0
        self._failure: tuple[KVBoostError, BaseException] | None = None

    def open(self, layers: int) -> None:
        """Say that the first ``layers`` layers are in place."""
        with self._changed:
            self._layers = layers
            self._changed.notify_all()

    def fail(self, error: KVBoostError, cause: BaseException) -> None:
        """Have everybody who waits, now or later, be told that no more layers come."""
        with self._changed:
            self._failure = error, cause
            self._changed.notify_all()

    def wait(self, layer: int) -> None:
        """Return once ``layer``, counted from 0, is in place.

        Raises
        ------
        LateFetchError
            If it will not be.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._layers > layer)
            if self._failure is not None:
                error, cause = self._failure
                raise error from cause


class SlabLayer(DynamicLayer):
    """One layer's K/V in a buffer with head room; ``keys`` and ``values`` are views of its filled part.

    Parameters
    ----------
    key_buffer, value_buffer
        ``[batch, kv_heads, capacity, dim]``; owned by the layer from now on.
    """

    def __init__(self, layer_idx: int, key_buffer: Tensor, value_buffer: Tensor) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.device = key_buffer.device
        self.is_initialized = True
        self.splice: SplicePass | None = None
        self.gate: LayerGate | None = None
        self._set_buffers(key_buffer, value_buffer, 0)

    def _set_buffers(self, key_buffer: Tensor, value_buffer: Tensor, length: int) -> None:
        self.key_buffer, self.value_buffer = key_buffer, value_buffer
        self.set_length(length)

    def set_length(self, length: int) -> None:
        """Make ``[0, length)`` of the buffers the layer's content."""
        self.keys = self.key_buffer[:, :, :length]
        self.values = self.value_buffer[:, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new K/V at the splice's positions, or append them; return all K/V that attention sees."""
        if self.gate is not None:
            self.gate.wait(self.layer_idx)
        if self.splice is not None:
            return self._splice(self.splice, key_states, value_states)
        start, count = self.keys.shape[-2], key_states.shape[-2]
        # Beam search and cropping replace `keys` by tensors of their own: take those as the new content.
        # (An empty view has no address.)
        replaced = start > 0 and self.keys.data_ptr() != self.key_buffer.data_ptr()
        if replaced or start + count > self.key_buffer.shape[-2]:
            self._rebuild(start, count)
        self.key_buffer[:, :, start : start + count] = key_states
        self.value_buffer[:, :, start : start + count] = value_states
        self.set_length(start + count)
        return self.keys, self.values

    def _splice(self, splice: SplicePass, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        if splice.layers is not None and self.layer_idx >= splice.layers:
            raise PassEnded
        shift = splice.shifts[self.layer_idx] if splice.shifts is not None else None
        if shift is not None:
            shift.apply(self.key_buffer[0], self.value_buffer[0], key_states[0], value_states[0])
        self.key_buffer[:, :, splice.positions] = key_states
        self.value_buffer[:, :, splice.positions] = value_states
        self.set_length(splice.length)
        return self.keys, self.values

    def _rebuild(self, start: int, count: int) -> None:
        capacity = max(self.key_buffer.shape[-2], (start + count) * 5 // 4 + HEAD_ROOM_TOKENS)
        buffers = []
        for old in (self.keys, self.values):
            with writable_anywhere():
                new = old.new_empty((old.shape[0], old.shape[1], capacity, old.shape[3]))
            new[:, :, :start] = old
            buffers.append(new)
        self._set_buffers(buffers[0], buffers[1], start)


@contextmanager
def writable_anywhere() -> Iterator[None]:
    """Make tensors that may be written to from any mode and thread, also where the caller is in ``inference_mode()``.

    What is made in that mode can only be written to in it; slabs outlive the call, and other threads write to them.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return zeros; on the CPU each page is made when it is first touched, so head room costs nothing.

    ``torch.zeros`` touches all of it: 17 ms for the 1,024 positions of the demo model that a short prompt gets.
    """
    count = math.prod(shape)
    if torch.device(device).type != "cpu" or count == 0 or sys.platform == "win32":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(shape)


class SlabCache(DynamicCache):
    """A transformers cache over one slab for all layers.

    Sliding-window layers keep all their tokens; the model's mask hides those outside the window.

    Parameters
    ----------
    capacity_tokens
        Positions to allocate; the slab grows if more are needed.
    buffers
        Keys and values ``[layers, batch, kv_heads, capacity, dim]`` to use instead of new memory.
    """

    def __init__(
        self,
        layout: KVLayout,
        capacity_tokens: int,
        device: torch.device | str = "cpu",
        batch_size: int = 1,
        buffers: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__()
        if buffers is None:
            shape = (layout.num_layers, batch_size, layout.num_kv_heads, capacity_tokens)
            dtype = TORCH_DTYPES[layout.dtype]
            # Positions that are not filled are masked, and 0 * NaN is NaN: values must start finite.
            with writable_anywhere():
                keys, values = (zeros((*shape, dim), dtype, device) for dim in (layout.key_dim, layout.value_dim))
            buffers = keys, values
        self.key_slab, self.value_slab = buffers
        self.layers = [SlabLayer(i, k, v) for i, (k, v) in enumerate(zip(self.key_slab, self.value_slab, strict=True))]
        self.layer_class_to_replicate = None

    def contents(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of all layers, ``[layers, batch, kv_heads, capacity or length, dim]``.

        Views of the slab, or copies where layers have grown out of it or hold tensors of their own.
        """
        whole = all(
            layer.keys.data_ptr() == keys.data_ptr() and layer.values.data_ptr() == values.data_ptr()
            for layer, keys, values in zip(self.layers, self.key_slab, self.value_slab, strict=True)
        )
        if whole:
            return self.key_slab, self.value_slab
        return torch.stack([layer.keys for layer in self.layers]), torch.stack([layer.values for layer in self.layers])

    def clear(self, span: Span) -> None:
        """Zero the K/V of ``span``."""
        self.key_slab[:, :, :, span.start : span.end] = 0
        self.value_slab[:, :, :, span.start : span.end] = 0

    def set_length(self, length: int) -> None:
        """Make ``[0, length)`` the content of every layer."""
        for layer in self.layers:
            layer.set_length(length)

    def set_gate(self, gate: LayerGate | None) -> None:
        """Let each layer be used only when ``gate`` says that it is in place; without one, at once."""
        for layer in self.layers:
            layer.gate = gate

    def complete(self) -> None:
        """Wait until all layers are in place.

        Raises
        ------
        LateFetchError
            If one will not be.
        """
        last = self.layers[-1]
        if last.gate is not None:
            last.gate.wait(last.layer_idx)

    def set_splice(self, splice: SplicePass | None) -> None:
        """Make the next forward pass write as ``splice`` says, or append again (None)."""
        for layer in self.layers:
            layer.splice = splice
