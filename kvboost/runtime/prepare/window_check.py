"""Whether the model looks back exactly as far as the masks by position say, however far that is.

A window in a configuration may be a leftover that the model ignores, and a prompt shorter than the window does not
show it. A cache as long as the window does, at the cost of a pass over a few tokens: its keys are all zero, so every
visible token counts alike, and the values of those outside the window are large, so one that is seen shows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from kvboost.runtime.attention.masks import position_masks
from kvboost.runtime.kv.slab import SlabCache, SplicePass
from kvboost.runtime.model.support import ModelSupport

_BEYOND_TOKENS = 32
_NEW_TOKENS = 8
_LARGE = 64.0


def windows_of(model: PreTrainedModel) -> list[int]:
    """Return the windows that the configuration names, if a prompt may exceed them."""
    config = model.config.get_text_config(decoder=True)
    longest = getattr(config, "max_position_embeddings", None) or 1 << 20
    named = {value for name, value in vars(config).items() if "window" in name or "attention_chunk" in name}
    sizes = sorted(v for v in named if isinstance(v, int) and not isinstance(v, bool))
    return [size for size in sizes if 1 < size < longest - _NEW_TOKENS]


@torch.no_grad()
def own_cache_error(model: PreTrainedModel, support: ModelSupport, ids: Tensor, window: int) -> float:
    """Return the relative difference of logits between the cache that ``generate()`` would make, and the slab.

    The slab keeps all K/V and leaves it to the model's mask to hide them; the other may drop what is out of the window.

    Parameters
    ----------
    ids
        ``[1, N]``, at least 8 tokens, of which the last are used.
    """
    cache = _filled(model, support, window)
    own = DynamicCache(config=model.config.get_text_config(decoder=True))
    for index, layer in enumerate(cache.layers):
        own.update(layer.keys.clone(), layer.values.clone(), index)
    expected = _last(model(input_ids=ids[:, -_NEW_TOKENS:], cache=own, use_cache=True).logits)
    return _relative(_last(model(input_ids=ids[:, -_NEW_TOKENS:], cache=cache, use_cache=True).logits), expected)


@torch.no_grad()
def window_error(model: PreTrainedModel, support: ModelSupport, ids: Tensor, window: int) -> float:
    """Return the relative difference of logits between the model's own mask and the one by position.

    Parameters
    ----------
    ids
        As in :func:`own_cache_error`.
    """
    cache, new = _filled(model, support, window), ids[:, -_NEW_TOKENS:]
    start = cache.get_seq_length()
    expected = _last(model(input_ids=new, cache=cache, use_cache=True).logits)
    positions = torch.arange(start, start + _NEW_TOKENS, device=model.device)
    mask = position_masks(model, positions, start + _NEW_TOKENS)
    cache.set_splice(SplicePass(positions, start + _NEW_TOKENS))
    inputs = {"input_ids": new, "position_ids": positions[None], "attention_mask": mask}
    return _relative(_last(model(**inputs, cache=cache, use_cache=True).logits), expected)


def _filled(model: PreTrainedModel, support: ModelSupport, window: int) -> SlabCache:
    """Return a slab with room for a few tokens that would see more than ``window`` others."""
    longest = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    length = min(window + _BEYOND_TOKENS, longest or window + _BEYOND_TOKENS)
    cache = SlabCache(support.layout, length, model.device)
    value = torch.randn(cache.value_slab.shape[-1:], generator=torch.Generator().manual_seed(0))
    cache.value_slab[...] = value.to(cache.value_slab)
    cache.value_slab[..., : max(length - window, 1), :] *= _LARGE
    cache.set_length(length - _NEW_TOKENS)
    return cache


def _last(logits: Tensor) -> Tensor:
    return logits[0, -1].float()


def _relative(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).norm() / (expected - expected.mean()).norm().clamp_min(1e-12))
