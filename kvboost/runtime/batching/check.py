"""Whether rows of different length can share a decode step of a model, found out by asking the model."""

from __future__ import annotations

import threading

import torch
from transformers import PreTrainedModel

from kvboost.runtime.attention.recording import attention_of
from kvboost.runtime.batching.step import decode_step
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.model.support import MASKED_ATTENTION, ModelSupport
from kvboost.types import KVLayout, Tier

_LENGTHS = (5, 23, 40)
_STEPS = 2
# Batched products round otherwise than single ones; a row that sees another's keys is off by a tenth and more.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def batching_obstacle(model: PreTrainedModel, support: ModelSupport, turn: threading.Lock) -> str:
    """Return why requests must be answered one after the other, or an empty string.

    ``turn`` is held while the model is switched to another attention.
    """
    if attention_of(model) not in MASKED_ATTENTION:
        return f"attention {attention_of(model)!r} is not one of {', '.join(MASKED_ATTENTION)}"
    if Tier.EXACT not in support.tiers:
        return f"its positions cannot be set row by row ({support.reason})"
    if support.longest_prompt is not None:
        return "it rotates keys by the longest row's length"
    error = _error(model, support.layout, turn)
    if not error <= _TOLERANCE[model.dtype]:
        return f"rows of a batch differ from single ones by {error:.2g} (at most {_TOLERANCE[model.dtype]:g} allowed)"
    return ""


@torch.no_grad()
def _error(model: PreTrainedModel, layout: KVLayout, turn: threading.Lock) -> float:
    """Return the largest relative difference of logits between a batch of rows and each row alone."""
    vocab = int(model.get_input_embeddings().num_embeddings)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(vocab, (n + _STEPS,), generator=generator).tolist() for n in _LENGTHS]
    caches = [SlabCache(layout, len(row), model.device) for row in rows]
    alone = []
    for row, cache in zip(rows, caches, strict=True):
        ids = torch.tensor([row], device=model.device)
        alone.append(model(input_ids=ids, use_cache=False).logits[0, -_STEPS:].float())
        model(input_ids=ids[:, :-_STEPS], cache=cache, use_cache=True)
    worst = 0.0
    for step in range(_STEPS):
        tokens = [row[step - _STEPS] for row in rows]
        logits = decode_step(model, caches, tokens, turn).float()
        for got, expected in zip(logits, (each[step] for each in alone), strict=True):
            error = float((got - expected).norm() / (expected - expected.mean()).norm().clamp_min(1e-12))
            worst = max(worst, error) if error == error else float("inf")
    return worst
