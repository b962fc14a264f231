"""The bytes of a model's tensors: digests of all of them, and marks that tell cheaply whether they changed.

Weights are not parameters only. Quantised layers keep them in buffers (GPTQ, AWQ, BitNet), in tensors inside a tensor
(torchao), or in what hangs on a parameter (bitsandbytes); all of these are read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

_PIECE_BYTES = 64 << 20
_SAMPLE_BYTES = 32


def tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that ``module`` itself holds, by name: parameters, all buffers, and plain attributes."""
    own = vars(module)
    for held in (own["_parameters"], own["_buffers"]):
        yield from ((name, tensor) for name, tensor in held.items() if tensor is not None)
    yield from ((name, value) for name, value in own.items() if isinstance(value, Tensor))


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the plain tensors that ``tensor`` consists of, and those that hang on it."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
    else:
        for name in flatten()[0]:
            yield from parts_of(getattr(tensor, name))
    for name, value in sorted(getattr(tensor, "__dict__", {}).items()):
        if flatten is not None and isinstance(value, Tensor):
            continue  # a part of it
        held = [value] if isinstance(value, Tensor) else _tensors_in(name, value)
        for inner in held:
            yield from parts_of(inner)


def _tensors_in(name: str, value: Any) -> list[Tensor]:
    """Return the tensors of an object that holds how a parameter is quantised (bitsandbytes' QuantState)."""
    inside = getattr(value, "__dict__", {}) if "quant" in name else {}
    found = [inside[key] for key in sorted(inside) if isinstance(inside[key], Tensor)]
    return found + [t for key in sorted(inside) for t in _tensors_in("quant" if "state" in key else "", inside[key])]


def digest_of(tensor: Tensor) -> bytes:
    """Return a 128-bit xxh3 of shape, dtype and every byte of ``tensor``, wherever it lies.

    It tells apart what differs by training or by accident, at the speed of memory; forgery is not its matter.
    """
    digest = xxhash.xxh3_128()
    for part in parts_of(tensor):
        digest.update(f"{tuple(part.shape)}{part.dtype}".encode())
        for piece in _pieces(part.detach()):
            digest.update(piece.view(torch.uint8).numpy().data)
    return digest.digest()


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the elements in order, as flat pieces in host memory."""
    flat = tensor.resolve_conj().reshape(-1)
    step = max(1, _PIECE_BYTES // max(1, tensor.element_size()))
    for start in range(0, flat.numel(), step):
        yield flat[start : start + step].cpu().contiguous()


_PLAIN = (Tensor, nn.Parameter)


def host_sample(tensor: Tensor) -> tuple[int, int, bytes]:
    """Return where a few bytes of ``tensor`` lie in host memory, how many, and what they are; nothing elsewhere.

    Writing through ``.data`` counts no version; then these bytes tell, unless only others were written.
    """
    if type(tensor) not in _PLAIN or tensor.device.type != "cpu" or tensor.data_ptr() == 0:
        return 0, 0, b""
    first, count = _sampled(tensor)
    at, length = tensor.data_ptr() + first * tensor.element_size(), count * tensor.element_size()
    return (at, length, ctypes.string_at(at, length)) if length else (0, 0, b"")


def version_of(tensor: Tensor) -> int:
    """Return how often ``tensor`` was written in place; -1 for one made under ``inference_mode``, which keeps none."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def pointer_of(tensor: Tensor) -> int:
    """Return the address of its memory, of all parts together for a tensor that wraps others; 0 if it has none."""
    if type(tensor) in _PLAIN:
        return tensor.data_ptr()
    return hash(tuple((part.data_ptr(), version_of(part)) for part in parts_of(tensor)))


def device_sample(tensors: Sequence[Tensor]) -> bytes:
    """Return a few bytes of each tensor that lies on a device, as :func:`host_sample` does for host memory."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        if type(tensor) in _PLAIN and tensor.device.type not in ("cpu", "meta"):
            first, count = _sampled(tensor)
            window = tensor.detach().as_strided((count,), (1,), tensor.storage_offset() + first)
            groups.setdefault((tensor.device, tensor.dtype), []).append(window)
    joined = (torch.cat(windows).view(torch.uint8).cpu() for windows in groups.values())
    return b"".join(bytes(each.numpy()) for each in joined)


def _sampled(tensor: Tensor) -> tuple[int, int]:
    """Return the first element, counted in memory, and the number of elements that are sampled: its middle."""
    if tensor.numel() == 0 or tensor.layout is not torch.strided:
        return 0, 0
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    count = min(extent, max(1, _SAMPLE_BYTES // tensor.element_size()))
    return (extent - count) // 2, count
