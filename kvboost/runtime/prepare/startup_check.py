"""The start-up gate: reuse is offered only where it reproduces this model's own prefill.

Checks on a random prompt long enough to reuse something: prefill goes on from K/V of the prompt's start (or the model
is refused); everything recomputed through the splice equals full prefill; half of it reused at the same position equals
full prefill; keys of layer 0 moved by re-rotation equal keys computed there; windows longer than the prompt are those
of the masks by position. A model that fails one of these runs without the tiers that need what failed. One that passes
is asked whether it makes a sink of a sequence's first tokens.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from kvboost.assets import default_cache_dir
from kvboost.runtime.attention.masks import position_masks
from kvboost.runtime.attention.recording import AttentionRecorder, recording
from kvboost.runtime.attention.transformers_api import attention_name
from kvboost.runtime.kv.slab import SlabCache, SplicePass
from kvboost.runtime.model.rope import rotated
from kvboost.runtime.model.support import ModelSupport
from kvboost.runtime.model.verdicts import read_kept, write_kept
from kvboost.runtime.prepare.prefix_check import check_prefix, refuse
from kvboost.runtime.prepare.sink import sink_tokens
from kvboost.runtime.prepare.window_check import window_error, windows_of
from kvboost.types import Namespace

GATE_TOKENS = 96
# Relative difference of logits and keys between two correct ways to compute them.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}


def pass_startup_check(
    model: PreTrainedModel, support: ModelSupport, namespace: Namespace, cache_dir: Path | None = None
) -> ModelSupport:
    """Return ``support`` reduced to the tiers that pass; the verdict is kept on disk for the next start.

    Raises
    ------
    ModelSupportError
        If not even the prefix tier passes.
    """
    path = (cache_dir or default_cache_dir()) / "gates" / f"{_gate_key(model, namespace)}.json"
    kept = read_kept(path)
    verdict = kept if isinstance(kept, dict) else {}
    refused, reason, sinks = verdict.get("refused"), verdict.get("reason"), verdict.get("sink_tokens")
    if not isinstance(refused, str) or not isinstance(reason, str) or not isinstance(sinks, int):
        refused = run_prefix_check(model, support)
        reason = support.reason or refused or run_gate(model, support)
        sinks = 0 if reason else find_sinks(model, support)
        write_kept(path, {"refused": refused, "reason": reason, "sink_tokens": sinks})
    if refused:
        raise refuse(model, refused)
    return support.without_approximate(reason) if reason else replace(support, sink_tokens=sinks)


def run_prefix_check(model: PreTrainedModel, support: ModelSupport) -> str:
    """Return why nothing of the model can be cached, as a sentence, or an empty string."""
    return check_prefix(model, support, _random_ids(model), _TOLERANCE[model.dtype])


@torch.no_grad()
def find_sinks(model: PreTrainedModel, support: ModelSupport) -> int:
    """Return how many first tokens of a sequence are not to be lent; for a model that passed :func:`run_gate`."""
    recorder = _recorded(model, support, _random_ids(model))
    return sink_tokens(recorder.total / recorder.layers * len(recorder.total))


@torch.no_grad()
def run_gate(model: PreTrainedModel, support: ModelSupport) -> str:
    """Return what fails, as a sentence, or an empty string."""
    try:
        return _run_gate(model, support)
    except Exception as error:  # noqa: BLE001 - the model's own code, which may fail in any way
        return f"the model does not run over a splice ({type(error).__name__}: {error})"


def _random_ids(model: PreTrainedModel) -> Tensor:
    vocab = model.config.get_text_config(decoder=True).vocab_size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab // 10, vocab, (1, GATE_TOKENS), generator=generator).to(model.device)


def _run_gate(model: PreTrainedModel, support: ModelSupport) -> str:
    ids = _random_ids(model)
    tolerance = _TOLERANCE[model.dtype]
    full = DynamicCache()
    expected = model(input_ids=ids, cache=full, use_cache=True).logits[0, -1].float()
    if not torch.isfinite(expected).all():
        return "full prefill gives logits that are not finite"
    for name, check in (("recompute-everything", _recompute_all), ("same-position reuse", _reuse_alternate)):
        error = _relative(check(model, support, ids, full), expected)
        if not error <= tolerance:
            return f"{name} through the splice differs from full prefill by {error:.2g} (at most {tolerance:g} allowed)"
    error = _rotation_error(model, support, ids, full)
    if not error <= tolerance:
        return f"re-rotated layer-0 keys differ from fresh ones by {error:.2g} (at most {tolerance:g} allowed)"
    for window in windows_of(model):
        error = window_error(model, support, ids, window)
        if not error <= tolerance:
            return (
                f"the model does not look back {window} tokens as its configuration says (logits differ by {error:.2g})"
            )
    return "" if _records_attention(model, support, ids) else "the attention of this model cannot be recorded"


def _recompute_all(model: PreTrainedModel, support: ModelSupport, ids: Tensor, full: DynamicCache) -> Tensor:
    return _spliced_logits(model, support, ids, torch.arange(ids.shape[1], device=ids.device), None)


def _reuse_alternate(model: PreTrainedModel, support: ModelSupport, ids: Tensor, full: DynamicCache) -> Tensor:
    """Reuse every other stretch of eight tokens; compute the rest, scattered, in one pass."""
    everywhere = torch.arange(ids.shape[1], device=ids.device)
    return _spliced_logits(model, support, ids, everywhere[(everywhere // 8) % 2 == 1], full)


def _spliced_logits(
    model: PreTrainedModel, support: ModelSupport, ids: Tensor, positions: Tensor, reused: DynamicCache | None
) -> Tensor:
    length = ids.shape[1]
    cache = SlabCache(support.layout, length, model.device)
    if reused is not None:
        kept = torch.ones(length, dtype=torch.bool, device=ids.device)
        kept[positions] = False
        for i, layer in enumerate(reused.layers):
            cache.key_slab[i][:, :, kept] = layer.keys[:, :, kept]
            cache.value_slab[i][:, :, kept] = layer.values[:, :, kept]
    cache.set_splice(SplicePass(positions, length))
    mask = position_masks(model, positions, length)
    logits: Tensor = model(
        input_ids=ids[:, positions], position_ids=positions[None], attention_mask=mask, cache=cache, use_cache=True
    ).logits
    return logits[0, -1].float()


def _rotation_error(model: PreTrainedModel, support: ModelSupport, ids: Tensor, full: DynamicCache) -> float:
    """Compare layer 0 of the second half, prefilled from position 0 and moved, with the same keys in place."""
    rope, half = support.ropes[0], ids.shape[1] // 2
    alone = DynamicCache()
    model(input_ids=ids[:, half:], cache=alone, use_cache=True)
    keys, expected = alone.layers[0].keys, full.layers[0].keys[:, :, half:].float()
    if rope is None:
        return _relative(keys.float(), expected)
    cos, sin = rope.angles(torch.tensor([half], device=ids.device))
    return _relative(rotated(keys, cos, sin, rope), expected)


def _recorded(model: PreTrainedModel, support: ModelSupport, ids: Tensor) -> AttentionRecorder:
    length = ids.shape[1]
    recorder = AttentionRecorder(torch.zeros(length, device=ids.device))
    positions = torch.arange(length, device=ids.device)
    with recording(model, recorder):
        model(
            input_ids=ids,
            position_ids=positions[None],
            attention_mask=position_masks(model, positions, length),
            cache=SlabCache(support.layout, length, model.device),
            use_cache=True,
        )
    return recorder


def _records_attention(model: PreTrainedModel, support: ModelSupport, ids: Tensor) -> bool:
    recorder = _recorded(model, support, ids)
    total = recorder.total.sum().item()
    # Weights of a layer sum to one per query, to less with an attention sink.
    return recorder.layers == support.layout.num_layers and 0.0 < total <= recorder.layers * 1.01


def _relative(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).norm() / (expected - expected.mean()).norm().clamp_min(1e-12))


def _gate_key(model: PreTrainedModel, namespace: Namespace) -> str:
    text = f"3 {namespace.key} {torch.__version__} {transformers.__version__} {model.device.type}"
    text += f" {attention_name(model)}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
