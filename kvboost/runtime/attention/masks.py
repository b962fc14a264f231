"""Masks by position for a pass over scattered tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvboost.runtime.attention.grouped import additive
from kvboost.runtime.attention.recording import takes_additive_masks

Mask = Tensor | dict[str, Tensor]


def layer_types(model: PreTrainedModel) -> list[str] | None:
    """Return the attention type of each layer where the configuration lists them."""
    types = getattr(model.config.get_text_config(decoder=True), "layer_types", None)
    return list(types) if types else None


def position_masks(model: PreTrainedModel, positions: Tensor, length: int, filled: Tensor | None = None) -> Mask:
    """Return the mask that lets each query see exactly the keys at positions not after its own.

    Parameters
    ----------
    positions
        ``[Q]`` positions of the queries.
    length
        Number of keys; key ``j`` stands at position ``j``.
    filled
        ``[length]`` boolean, keys that exist; all if None.

    Returns
    -------
    Mask
        ``[1, 1, Q, length]``, boolean for sdpa, additive in the model's dtype for eager (the other way round is
        silently wrong) and grouped attention; a dict by layer type where layers differ.
    """
    config = model.config.get_text_config(decoder=True)
    distance = positions[:, None] - torch.arange(length, device=positions.device)
    visible = distance >= 0
    if filled is not None:
        visible &= filled
    window = getattr(config, "sliding_window", None)
    near = visible if window is None else visible & (distance < window)
    types = layer_types(model)
    if types is None:
        return _finish(model, near if getattr(config, "use_sliding_window", True) else visible)
    if set(types) == {"full_attention"}:
        return _finish(model, visible)
    return {"full_attention": _finish(model, visible), "sliding_attention": _finish(model, near)}


def _finish(model: PreTrainedModel, visible: Tensor) -> Tensor:
    if takes_additive_masks(model):
        return additive(visible, model.dtype)[None, None]
    return visible[None, None]
