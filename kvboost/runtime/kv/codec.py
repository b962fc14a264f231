"""Between K/V tensors and the bytes of a chunk (see :class:`kvboost.types.KVLayout`)."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvboost.errors import NonFiniteError, TensorError
from kvboost.runtime.kv.finite import all_finite
from kvboost.types import KVLayout

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def pack(keys: Tensor, values: Tensor, layout: KVLayout) -> memoryview:
    """Return the bytes of one chunk.

    Parameters
    ----------
    keys, values
        ``[layers, kv_heads, T, key_dim]`` and ``[layers, kv_heads, T, value_dim]``; copied.

    Raises
    ------
    TensorError
        If a shape or dtype does not fit ``layout``.
    NonFiniteError
        If a number is infinite or none.
    """
    layers, heads, tokens = keys.shape[:3]
    dtype = TORCH_DTYPES[layout.dtype]
    for name, tensor, dim in (("keys", keys, layout.key_dim), ("values", values, layout.value_dim)):
        if tensor.shape != (layout.num_layers, layout.num_kv_heads, tokens, dim) or tensor.dtype != dtype:
            raise TensorError(f"{name} of shape {tuple(tensor.shape)} and dtype {tensor.dtype} do not fit {layout}")
    flat = torch.empty((layers, heads * tokens * (layout.key_dim + layout.value_dim)), dtype=dtype)
    flat_keys, flat_values = _parts(flat, layout, tokens)
    flat_keys.copy_(keys)
    flat_values.copy_(values)
    if not all_finite(flat):
        raise NonFiniteError(f"K/V of {tokens} tokens are infinite or not a number somewhere; they are not stored")
    raw: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy().reshape(-1)
    return raw.data


def unpack(payload: memoryview, layout: KVLayout, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Return keys and values ``[layers, kv_heads, T, dim]`` as views of ``payload``; do not write to them.

    Raises
    ------
    TensorError
        If the byte count does not fit ``layout`` and ``num_tokens``.
    """
    expected = layout.token_bytes * num_tokens
    if payload.nbytes != expected:
        raise TensorError(f"a chunk of {num_tokens} tokens must have {expected} bytes of K/V, not {payload.nbytes}")
    flat = _alias(payload).view(TORCH_DTYPES[layout.dtype]).view(layout.num_layers, -1)
    return _parts(flat, layout, num_tokens)


def _parts(flat: Tensor, layout: KVLayout, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Split ``[layers, K then V]`` into views of K and V."""
    split = layout.num_kv_heads * num_tokens * layout.key_dim
    shape = (layout.num_layers, layout.num_kv_heads, num_tokens)
    return (
        flat[:, :split].view(*shape, layout.key_dim),
        flat[:, split:].view(*shape, layout.value_dim),
    )


def _alias(payload: memoryview) -> Tensor:
    """Return a uint8 tensor over the bytes of ``payload`` without a copy.

    torch knows no read-only tensors and warns when it is given read-only memory, so the address is handed
    over; the array keeps the payload alive, and nothing in this package writes through the result.
    """
    source = np.frombuffer(payload, dtype=np.uint8)
    window = (ctypes.c_uint8 * source.nbytes).from_address(source.ctypes.data)
    window._payload = source  # type: ignore[attr-defined]
    return torch.frombuffer(window, dtype=torch.uint8)
