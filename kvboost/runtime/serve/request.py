"""What a call to ``generate()`` asks for, and whether reuse can serve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

# Arguments that need K/V or inputs which this runtime does not prepare.
_FOREIGN = (
    "cache", "past_key_values", "cache_params", "inputs_embeds", "encoder_outputs", "position_ids", "token_type_ids",
    "assistant_model", "custom_generate", "negative_prompt_ids", "pixel_values", "streaming_config",
)  # fmt: skip
# Generation settings that change how the prompt is prefilled, or that need all of its states.
_SETTINGS = (
    "cache_implementation", "prompt_lookup_num_tokens", "prefill_chunk_size", "penalty_alpha", "dola_layers",
    "token_healing", "output_attentions", "output_hidden_states", "assistant_early_exit", "guidance_scale",
)  # fmt: skip
_DEFAULT_NEW_TOKENS = 20
MOST_NEW_TOKENS = 1024
"""Room made for an answer, at most: a limit far above what is usual must not cost memory. The slab grows if need be."""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt of a batch: ``token_ids`` without the ``padding`` tokens to their left."""

    token_ids: tuple[int, ...]
    padding: int


@dataclass(frozen=True, slots=True)
class Request:
    """A call to ``generate()`` that reuse can serve.

    Attributes
    ----------
    expand
        Sequences decoded per prompt (beams or returned sequences).
    new_tokens
        Tokens to be decoded that room is made for beforehand.
    """

    rows: tuple[PromptRow, ...]
    expand: int
    beams: int
    new_tokens: int
    returns_dict: bool


@dataclass(frozen=True, slots=True)
class Declined:
    """A call that is passed on to plain ``generate()``, and why."""

    reason: str
    prompt_tokens: int


def read_request(model: PreTrainedModel, inputs: Tensor | None, arguments: Mapping[str, Any]) -> Request | Declined:
    """Read the arguments of a call to ``generate()``; what reuse cannot serve, the model itself answers or refuses."""
    ids = _ids(inputs, arguments)
    tokens = prompt_tokens(inputs, arguments)
    foreign = next((name for name in _FOREIGN if arguments.get(name) is not None), None)
    if foreign is not None:
        return Declined(f"the call brings its own {foreign}", tokens)
    if not _are_prompts(ids):
        return Declined("input_ids are not a tensor [batch, tokens] of token ids, with at least one token", tokens)
    settings = _Settings(model, arguments)
    rows = _rows(ids, arguments.get("attention_mask"), settings)
    reason = settings.obstacle() or (rows if isinstance(rows, str) else _too_long(model, rows))
    if reason or isinstance(rows, str):
        return Declined(reason, tokens)
    beams = int(settings.get("num_beams") or 1)
    return Request(
        rows=rows,
        expand=max(beams, int(settings.get("num_return_sequences") or 1)),
        beams=beams,
        new_tokens=min(settings.new_tokens(ids.shape[1]), MOST_NEW_TOKENS),
        returns_dict=bool(settings.get("return_dict_in_generate")),
    )


def prompt_tokens(inputs: Tensor | None, arguments: Mapping[str, Any]) -> int:
    """Return how many token ids a call brings, padding included."""
    ids = _ids(inputs, arguments)
    return ids.numel() if isinstance(ids, torch.Tensor) else 0


def _ids(inputs: Tensor | None, arguments: Mapping[str, Any]) -> Any:
    return inputs if inputs is not None else arguments.get("input_ids")


def _are_prompts(ids: Any) -> bool:
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.numel() == 0:
        return False
    return ids.dtype in (torch.long, torch.int) and bool((ids >= 0).all())


class _Settings:
    """Generation settings in the order of precedence that ``generate()`` uses."""

    def __init__(self, model: PreTrainedModel, arguments: Mapping[str, Any]) -> None:
        self._model = model
        self._arguments = arguments

    def get(self, name: str) -> Any:
        if self._arguments.get(name) is not None:
            return self._arguments[name]
        given = self._arguments.get("generation_config")
        own = self._model.generation_config
        for config in (given, own):
            value = getattr(config, name, None) if isinstance(config, GenerationConfig) else None
            if value is not None:
                return value
        return None

    def obstacle(self) -> str:
        if self._model.training:
            return "the model is in training mode"
        device = self._model.device.type
        if device != "meta" and torch.is_autocast_enabled(device):  # offloaded weights lie nowhere
            return "autocast is on, which gives K/V another precision than those of the cache"
        if self.get("use_cache") is False:
            return "use_cache is off"
        name = next((name for name in _SETTINGS if self.get(name) not in (None, False)), None)
        return f"{name}={self.get(name)!r} needs its own prefill" if name is not None else ""

    def new_tokens(self, prompt_length: int) -> int:
        new_tokens = self.get("max_new_tokens")
        if new_tokens is not None:
            return int(new_tokens)
        max_length = self.get("max_length")
        return max(int(max_length) - prompt_length, 1) if max_length else _DEFAULT_NEW_TOKENS


def _rows(ids: Tensor, mask: Any, settings: _Settings) -> tuple[PromptRow, ...] | str:
    """Return the prompts without padding, or why the mask rules that out."""
    unfit = "the attention mask is not plain left padding"
    if mask is None:
        mask = _inferred_mask(ids, settings)
    if not isinstance(mask, torch.Tensor) or mask.shape != ids.shape:
        return unfit
    rows = []
    for row_ids, row_mask in zip(ids.tolist(), mask.bool().tolist(), strict=True):
        padding = row_mask.index(True) if True in row_mask else len(row_mask)
        if padding == len(row_ids):
            return "a row of the batch is all padding"
        if not all(row_mask[padding:]):
            return unfit
        rows.append(PromptRow(tuple(row_ids[padding:]), padding))
    return tuple(rows)


def _inferred_mask(ids: Tensor, settings: _Settings) -> Tensor:
    """Return the mask that ``generate()`` infers without one: padding only where pad is not also end of sequence."""
    pad, ends = settings.get("pad_token_id"), settings.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    if pad is None or pad in ends or not bool((ids == pad).any()):
        return torch.ones_like(ids)
    return ids.ne(int(pad)).long()


def _too_long(model: PreTrainedModel, rows: tuple[PromptRow, ...]) -> str:
    """Return why a prompt beyond the model's context is declined, or an empty string."""
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    longest = max(len(row.token_ids) for row in rows)
    if limit is None or longest <= limit:
        return ""
    return f"the prompt has {longest} tokens, the model's context holds {limit}"
