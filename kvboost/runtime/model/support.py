"""What can be done right with a loaded model, found out by asking the model itself.

With a single token in the context attention is the identity, so hidden states do not depend on the position
and the keys of *every* layer must be rotations of each other. One forward pass over three such one-token rows
therefore tells, layer by layer, which rotation the model applies (or that it applies none), without knowing
its architecture. What does not fit is refused by name.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from kvboost.errors import ModelSupportError
from kvboost.runtime.attention.masks import layer_types
from kvboost.runtime.attention.recording import attention_of
from kvboost.runtime.attention.transformers_api import DynamicLayer
from kvboost.runtime.model.rope import Pairing, Rope, rotated
from kvboost.types import KVLayout, Tier

APPROXIMATE = frozenset({Tier.EXACT, Tier.SIMILAR, Tier.SUBSTITUTE})
MASKED_ATTENTION = ("sdpa", "eager")
UNALIGNABLE_ROPE = {"dynamic": "dynamic NTK", "longrope": "LongRoPE", "su": "LongRoPE"}
KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention"}
_TOLERANCE = {torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True, slots=True)
class ModelSupport:
    """Layout of a model's K/V and the tiers it can be served.

    Attributes
    ----------
    layout
        Shape and dtype of its K/V.
    ropes
        One per layer; None for a layer that does not rotate its keys (NoPE).
    tiers
        The tiers that are correct for this model.
    reason
        Why the approximate tiers are refused, or an empty string.
    longest_prompt
        Tokens beyond which not even a prefix can be reused, or None: keys of longer prompts are rotated otherwise.
    sink_tokens
        How many first tokens of a sequence draw attention for their place alone; 0 for a model that makes no sink.
    """

    layout: KVLayout
    ropes: tuple[Rope | None, ...]
    tiers: frozenset[Tier]
    reason: str = ""
    longest_prompt: int | None = None
    sink_tokens: int = 0

    def rope_layers(self) -> dict[Rope, list[int]]:
        """Layers grouped by rope, without those that do not rotate."""
        groups: dict[Rope, list[int]] = {}
        for layer, rope in enumerate(self.ropes):
            if rope is not None:
                groups.setdefault(rope, []).append(layer)
        return groups

    def without_approximate(self, reason: str) -> ModelSupport:
        """Return the support that is left when re-aligned reuse is ruled out for ``reason``."""
        return replace(self, tiers=self.tiers - APPROXIMATE, reason=reason)


@dataclass(frozen=True, slots=True)
class _Probe:
    """Keys of one token at three positions: ``keys[layer]`` is ``[3, kv_heads, 1, key_dim]``."""

    positions: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    ropes: list[tuple[float, ...]] = field(default_factory=list)


def examine(model: PreTrainedModel) -> ModelSupport:
    """Probe ``model`` and say what it supports.

    Raises
    ------
    ModelSupportError
        If its K/V cannot be cached at all (encoder-decoder, recurrent state, offloaded weights, unequal layers).
    """
    _refuse_uncacheable(model)
    probe = _run_probe(model)
    layout = _layout(probe)
    reason = _known_obstacle(model)
    ropes: tuple[Rope | None, ...] = (None,) * layout.num_layers
    if not reason:
        found = [_rope_of(k, probe) for k in probe.keys]
        reason = _value_obstacle(probe) or _rope_obstacle(found)
        if not reason:
            ropes = tuple(r if isinstance(r, Rope) else None for r in found)
    full = frozenset({Tier.PREFIX}) | APPROXIMATE
    support = ModelSupport(layout, ropes, full, longest_prompt=_longest_prompt(model))
    return support.without_approximate(reason) if reason else support


def last_logits_only(model: PreTrainedModel) -> dict[str, int]:
    """Return the forward argument that restricts logits to the last token, where the model has one."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def _refuse_uncacheable(model: PreTrainedModel) -> None:
    name = type(model).__name__
    if not model.can_generate():
        raise ModelSupportError(f"{name} does not generate text; load a decoder-only model with a language-model head")
    if model.config.is_encoder_decoder:
        raise ModelSupportError(f"{name} is an encoder-decoder model; only decoder-only models can be boosted")
    if getattr(model, "_is_stateful", False):
        raise ModelSupportError(f"{name} keeps a recurrent state, which chunks of K/V cannot stand for")
    offloaded = next((each for each, weight in model.named_parameters() if weight.device.type == "meta"), None)
    if offloaded is not None:
        raise ModelSupportError(
            f"{name} has offloaded weights ({offloaded.rpartition('.')[0]}), in memory only while their layer runs; "
            "load it with a device_map that offloads nothing to cpu or disk"
        )
    recurrent = {t for t in layer_types(model) or [] if "attention" not in t or "linear" in t}
    if recurrent:
        raise ModelSupportError(
            f"{name} has layers of type {', '.join(sorted(recurrent))}, which keep a recurrent state; "
            "chunks of K/V cannot stand for it"
        )


def _known_obstacle(model: PreTrainedModel) -> str:
    """Name what rules out re-alignment judging by the configuration, or return an empty string."""
    config = model.config.get_text_config(decoder=True)
    for kind in _rope_types(config):
        if kind in UNALIGNABLE_ROPE:
            return (
                f"{UNALIGNABLE_ROPE[kind]} (rope_type {kind!r}) changes its frequencies with the prompt's length, "
                "so cached keys cannot be re-aligned"
            )
    attention = attention_of(model)
    if attention not in MASKED_ATTENTION:
        return (
            f"attention implementation {attention!r} takes no mask by position; load the model with "
            "attn_implementation='sdpa' for reuse at other positions"
        )
    unknown = set(layer_types(model) or []) - KNOWN_LAYER_TYPES
    if unknown:
        return f"layers of type {', '.join(sorted(unknown))} are not supported for reuse at other positions"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return f"{type(model).__name__} takes no position_ids (ALiBi or no positions), so keys cannot be re-aligned"
    return ""


def _longest_prompt(model: PreTrainedModel) -> int | None:
    """Return where LongRoPE goes over to its other set of frequencies, for all tokens of a prompt at once."""
    config = model.config.get_text_config(decoder=True)
    own = getattr(config, "original_max_position_embeddings", None)
    switching = [p for p in _rope_parameters(config) if p.get("rope_type") in ("longrope", "su")]
    return min((int(p.get("original_max_position_embeddings") or own or 0) for p in switching), default=None)


def changes_frequencies(model: PreTrainedModel) -> bool:
    """Return whether the model changes its rotary frequencies with the prompt's length."""
    return any(kind in UNALIGNABLE_ROPE for kind in _rope_types(model.config.get_text_config(decoder=True)))


def _rope_types(config: object) -> list[str]:
    return [str(p.get("rope_type", "default")) for p in _rope_parameters(config)]


def _rope_parameters(config: object) -> list[dict[str, Any]]:
    """Return the RoPE parameters, one set for each type of layer that has its own."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [v for v in parameters.values() if isinstance(v, dict)] or [parameters]


def _rope_obstacle(found: list[Rope | str | None]) -> str:
    for layer, rope in enumerate(found):
        if isinstance(rope, str):
            return f"layer {layer}: {rope}"
    if all(rope is None for rope in found):
        return "no layer rotates its keys (ALiBi or no positions), so there is nothing to re-align by"
    return ""


def _value_obstacle(probe: _Probe) -> str:
    for layer, values in enumerate(probe.values):
        moved = (values[1:].float() - values[:1].float()).norm().item()
        if moved > _TOLERANCE[values.dtype] * values.float().norm().item():
            return f"layer {layer}: values depend on the position (learned positions, or multi-head latent attention)"
    return ""


@torch.inference_mode()
def _run_probe(model: PreTrainedModel) -> _Probe:
    config = model.config.get_text_config(decoder=True)
    last = min(getattr(config, "max_position_embeddings", None) or 4096, 4096) - 1
    positions = torch.tensor([0, max(last // 3, 1), max(last, 2)], device=model.device)
    ids = torch.full((3, 1), min(config.vocab_size - 1, 257), device=model.device)
    cache = DynamicCache()
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    extra = {"position_ids": positions[:, None]} if takes_positions else {}
    try:
        model(input_ids=ids, cache=cache, use_cache=True, **extra)
    except Exception as error:  # the model's own code, which may fail in any way
        raise ModelSupportError(
            f"{type(model).__name__} does not run with transformers' DynamicCache ({type(error).__name__}: {error}); "
            "its K/V cannot be cached"
        ) from error
    layers = cache.layers
    if not layers or any(type(layer) is not DynamicLayer or not layer.is_initialized for layer in layers):
        raise ModelSupportError(f"{type(model).__name__} does not keep plain K/V in every layer; it cannot be cached")
    if len(layers) != config.num_hidden_layers:
        raise ModelSupportError(
            f"{type(model).__name__} fills {len(layers)} cache layers for {config.num_hidden_layers} model layers "
            "(K/V shared across layers); it cannot be cached"
        )
    frequencies = {
        tuple(buffer.cpu().double().tolist())
        for name, buffer in model.named_buffers()
        if name.endswith("inv_freq") and "original" not in name
    }
    return _Probe(positions, [x.keys for x in layers], [x.values for x in layers], sorted(frequencies))


def _layout(probe: _Probe) -> KVLayout:
    key_shapes = {tuple(k.shape) for k in probe.keys}
    value_shapes = {tuple(v.shape) for v in probe.values}
    if len(key_shapes) > 1 or len(value_shapes) > 1:
        raise ModelSupportError("the model's layers have K/V of unequal shapes; they cannot be cached as chunks")
    (key_shape,), (value_shape,) = key_shapes, value_shapes
    devices = {str(k.device) for k in probe.keys}
    if len(devices) > 1:
        raise ModelSupportError(f"the model's layers lie on several devices ({', '.join(sorted(devices))})")
    if key_shape[1] != value_shape[1]:
        raise ModelSupportError("the model's keys and values have unequal numbers of heads; they cannot be cached")
    dtype = str(probe.keys[0].dtype).removeprefix("torch.")
    return KVLayout(len(probe.keys), key_shape[1], key_shape[3], value_shape[3], dtype)


def _rope_of(keys: Tensor, probe: _Probe) -> Rope | str | None:
    """Return the rope that explains a layer's keys, None for no rotation, or a sentence why neither fits."""
    base, moved = keys[:1], keys[1:].float()
    tolerance = _TOLERANCE[keys.dtype]
    scale = moved.norm().item()
    if scale == 0.0:
        return "keys are all zero"
    if (moved - base.float()).norm().item() <= tolerance * scale * 0.1:
        return None
    best_error, best = min(
        ((_misfit(base, moved, probe.positions[1:], rope), rope) for rope in _candidates(keys, probe)),
        key=lambda pair: pair[0],
        default=(float("inf"), None),
    )
    if best is None or best_error > tolerance * scale:
        return "keys at two positions are not rotations of each other (learned positions, or an unknown rotation)"
    return best


def _candidates(keys: Tensor, probe: _Probe) -> list[Rope]:
    fitting = [f for f in probe.ropes if 2 * len(f) <= keys.shape[-1]]
    return [Rope(f, pairing) for f in fitting for pairing in Pairing]


def _misfit(base: Tensor, moved: Tensor, positions: Tensor, rope: Rope) -> float:
    cos, sin = rope.angles(positions)
    turned = rotated(base, cos[:, None, None, :], sin[:, None, None, :], rope)
    return float((turned - moved).norm())
