"""Re-rotation: moving cached keys from the position they were computed at to the position they are wanted at.

RoPE (Su et al., 2021, arXiv:2104.09864) rotates each pair of key dimensions by ``position * inv_freq``.
Rotations add up, so a key cached at position ``p`` is moved to ``q`` by ``R(q - p)``. Angles are taken in
fp64, the product in fp32, and the result is cast once. An attention scaling (YaRN) is part of the cached key
already and is not applied again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from kvboost.runtime.model.device import angle_device


class Pairing(StrEnum):
    """Which dimensions form a rotated pair: ``(i, i + n/2)`` or ``(2i, 2i + 1)``."""

    HALF = "half-split"
    INTERLEAVED = "interleaved"


@dataclass(frozen=True, slots=True)
class Rope:
    """How the keys of some layers are rotated.

    Attributes
    ----------
    inv_freq
        Angular frequencies, one per pair, as Python floats so that ropes compare by value. The first
        ``2 * len(inv_freq)`` dimensions of a key rotate; the rest (partial rotary) stay.
    pairing
        See :class:`Pairing`.
    """

    inv_freq: tuple[float, ...]
    pairing: Pairing

    @property
    def rotary_dim(self) -> int:
        """Number of leading key dimensions that rotate."""
        return 2 * len(self.inv_freq)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return fp32 cosine and sine, each ``[len(positions), rotary_dim / 2]``, of integer positions."""
        where = angle_device(positions.device)
        freq = torch.tensor(self.inv_freq, dtype=torch.float64, device=where)
        angle = positions.to(where).to(torch.float64)[:, None] * freq
        return angle.cos().float().to(positions.device), angle.sin().float().to(positions.device)


def rotate(keys: Tensor, cos: Tensor, sin: Tensor, rope: Rope, out: Tensor) -> None:
    """Write ``R keys`` into ``out``.

    Parameters
    ----------
    keys, out
        ``[..., T, key_dim]``, any float dtype, not overlapping; the product is in fp32, cast once.
    cos, sin
        ``[T, rotary_dim / 2]``, or ``[1, rotary_dim / 2]`` for one angle for all tokens.
    """
    first, second = pairs(keys, rope)
    out_first, out_second = pairs(out, rope)
    if keys.dtype == out.dtype == torch.float32:
        torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1.0)  # no temporaries
        torch.mul(second, cos, out=out_second).addcmul_(first, sin)
    else:
        a, b = first.float(), second.float()
        out_first.copy_(a * cos - b * sin)
        out_second.copy_(b * cos + a * sin)
    if rope.rotary_dim < keys.shape[-1]:
        out[..., rope.rotary_dim :].copy_(keys[..., rope.rotary_dim :])


def rotated(keys: Tensor, cos: Tensor, sin: Tensor, rope: Rope) -> Tensor:
    """Return ``R keys`` as a new fp32 tensor; parameters as in :func:`rotate`."""
    keys = keys.expand(
        *(max(a, b) for a, b in zip(keys.shape[:-1], _left_padded(cos.shape[:-1], keys.dim() - 1), strict=True)), -1
    )
    out = torch.empty(keys.shape, dtype=torch.float32, device=keys.device)
    rotate(keys, cos, sin, rope, out)
    return out


def _left_padded(shape: torch.Size, dims: int) -> tuple[int, ...]:
    return (1,) * (dims - len(shape)) + tuple(shape)


def pairs(keys: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Return views ``[..., rotary_dim / 2]`` of the two members of all rotated pairs of ``[..., key_dim]``."""
    if rope.pairing is Pairing.HALF:
        half = rope.rotary_dim // 2
        return keys[..., :half], keys[..., half : rope.rotary_dim]
    return keys[..., 0 : rope.rotary_dim : 2], keys[..., 1 : rope.rotary_dim : 2]
