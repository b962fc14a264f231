"""What even the prefix tier stands on: going on from K/V of a prompt's start equals prefill of the whole prompt."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from kvboost.errors import ModelSupportError
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.model.support import ModelSupport
from kvboost.runtime.prepare.window_check import own_cache_error, windows_of

_HEAD_TOKENS = 64


@torch.no_grad()
def check_prefix(model: PreTrainedModel, support: ModelSupport, ids: Tensor, tolerance: float) -> str:
    """Return why K/V of a prompt's start cannot stand for it, as a sentence, or an empty string.

    The median over positions counts: where a router is near a tie, rounding alone may turn single tokens over.

    Parameters
    ----------
    ids
        ``[1, N]``, more than 64 tokens.
    """
    try:
        expected, logits = _logits(model, support, ids)
        beyond = max((own_cache_error(model, support, ids, window) for window in windows_of(model)), default=0.0)
    except Exception as error:  # noqa: BLE001 - another's code, which may fail in any way
        return f"it cannot go on from cached K/V ({type(error).__name__}: {error})"
    if not torch.isfinite(expected).all():
        return ""  # nothing can be told; the start-up check says so
    scale = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1).clamp_min(1e-12)
    difference = float(((logits - expected).norm(dim=-1) / scale).median())
    if beyond > tolerance:
        return (
            f"generate() drops K/V that the model's own mask lets it see (logits differ by {beyond:.2g}): its "
            "configuration names a window that the model does not keep; set it to None"
        )
    if difference <= tolerance:
        return ""
    return (
        f"prefill that goes on from cached K/V differs from full prefill by {difference:.2g} (at most {tolerance:g} "
        "allowed): its attention is not causal, or it keeps more than K/V"
    )


def refuse(model: PreTrainedModel, reason: str) -> ModelSupportError:
    """Return the error that says why ``model`` cannot be boosted."""
    return ModelSupportError(f"{type(model).__name__} cannot be cached: {reason}")


def _logits(model: PreTrainedModel, support: ModelSupport, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits behind the first 64 tokens by full prefill, and going on from K/V of those, ``[n, vocab]``."""
    expected = model(input_ids=ids, cache=DynamicCache(), use_cache=True).logits[0, _HEAD_TOKENS:].float()
    cache = SlabCache(support.layout, ids.shape[1], model.device)
    model(input_ids=ids[:, :_HEAD_TOKENS], cache=cache, use_cache=True)
    mask = torch.ones_like(ids)  # as generate() passes one
    logits = model(input_ids=ids[:, _HEAD_TOKENS:], attention_mask=mask, cache=cache, use_cache=True).logits
    return expected, logits[0].float()
