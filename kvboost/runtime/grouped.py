"""Attention that reads K/V once for a group of query heads.

Under a mask transformers' ``sdpa`` repeats K/V for every query head, in every layer: for a few new tokens over a long
cache that copy costs more than the attention. On the CPU torch's kernel takes grouped heads as they are, with results
that are equal to the last bit; and a mask that is additive from the start is not converted again in every layer. On
other devices grouped heads under a mask fall back to a slow kernel, so there the model keeps its own attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED = "kvboost_grouped_sdpa"


def use_grouped(model: PreTrainedModel) -> None:
    """Switch ``model`` from ``sdpa`` to grouped attention if it has grouped heads and lies on the CPU."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", 0)
    fewer = getattr(config, "num_key_value_heads", None) or heads
    if model.device.type == "cpu" and model.config._attn_implementation == "sdpa" and fewer < heads:
        model.config._attn_implementation = GROUPED


def use_own(model: PreTrainedModel) -> None:
    """Undo :func:`use_grouped`."""
    if model.config._attn_implementation == GROUPED:
        model.config._attn_implementation = "sdpa"


def grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention as transformers' ``sdpa`` computes it, without repeating K/V under a mask.

    Parameters
    ----------
    query
        ``[batch, heads, Q, dim]``.
    key, value
        ``[batch, kv_heads, length, dim]``; ``heads`` is a multiple of ``kv_heads``.
    attention_mask
        ``[batch or 1, 1, Q, length]``, boolean or additive, or None.

    Returns
    -------
    tuple
        Output ``[batch, Q, heads, dim]`` and None.
    """
    special = kwargs.get("position_bias") is not None or kwargs.get("softcap") is not None
    if attention_mask is None or special or key.shape[1] == query.shape[1]:
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output
    attended = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=kwargs.get("dropout", 0.0),
        scale=kwargs.get("scaling"),
        enable_gqa=True,
    )
    return attended.transpose(1, 2).contiguous(), None


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a boolean mask as an additive one; what is hidden gets the lowest finite number, never NaN."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, torch.finfo(dtype).min)


def _additive_mask(*args: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor | None:
    visible = sdpa_mask(*args, **kwargs)
    return None if visible is None else additive(visible, dtype)


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, _additive_mask)
