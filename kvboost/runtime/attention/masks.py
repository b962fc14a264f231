"""Masks by position for a pass over scattered tokens, and how many tokens such a pass may take.

A mask has a number for each token of the pass and each key before it: over 128K keys that is half a megabyte a token.
So a pass over a long prompt is cut into pieces, each under a mask of its own that reaches as far as its last token.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvboost.runtime.attention.grouped import additive
from kvboost.runtime.attention.recording import attention_of, takes_additive_masks

Mask = Tensor | dict[str, Tensor]

MASK_ELEMENTS = 1 << 24
"""Numbers of one mask at most, in fp32 64 MiB; of 4,096 tokens over 4,096 keys, or of 128 over 128K."""


MOST_ROWS = 4096
"""Tokens of one such pass at most: what is between the layers grows with them."""


def rows_at_once(model: PreTrainedModel, length: int) -> int:
    """Return how many tokens may attend to ``length`` keys in one pass under a mask, at least 1.

    Eager attention keeps a number for every head, too.
    """
    heads = 1
    if attention_of(model) == "eager":
        heads = getattr(model.config.get_text_config(decoder=True), "num_attention_heads", 1)
    return max(1, min(MOST_ROWS, MASK_ELEMENTS // (heads * max(length, 1))))


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
    own = positions.to(torch.int32)[:, None]
    keys = torch.arange(length, device=positions.device, dtype=torch.int32)
    visible = keys <= own
    if filled is not None:
        visible &= filled
    window = getattr(config, "sliding_window", None)
    near = visible if window is None else visible & (keys > own - window)
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
