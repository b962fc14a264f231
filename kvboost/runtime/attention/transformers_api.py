"""All of transformers that its own documentation does not promise: each name that a new version may move, in one place.

Everything else imports from ``transformers`` itself, or from here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, LogitsProcessorList, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

__all__ = [
    "AttentionFunction",
    "DynamicLayer",
    "attention_name",
    "base_attention",
    "has_attention",
    "holds_adapters",
    "logits_processors",
    "mask_function",
    "register_attention",
    "sdpa_attention_forward",
    "sdpa_mask",
    "set_attention_name",
]

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]
"""``(module, query, key, value, mask, **settings)`` to the output and, from some, the weights."""


def attention_name(model: PreTrainedModel) -> str:
    """Return the name of the attention that ``model`` computes with at present."""
    name: str = model.config._attn_implementation
    return name


def set_attention_name(model: PreTrainedModel, name: str) -> None:
    """Switch ``model`` to a registered attention, without the checks of a model that is being loaded."""
    model.config._attn_implementation = name


def has_attention(name: str) -> bool:
    """Return whether an attention of this name is registered."""
    return name in ALL_ATTENTION_FUNCTIONS


def register_attention(name: str, function: AttentionFunction, mask: Callable[..., Any]) -> None:
    """Register an attention and the function that makes its masks."""
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, mask)


def mask_function(name: str) -> Callable[..., Any]:
    """Return the function that makes masks for a registered attention."""
    function: Callable[..., Any] = ALL_MASK_ATTENTION_FUNCTIONS[name]
    return function


def base_attention(name: str, module: nn.Module) -> AttentionFunction:
    """Return a registered attention; for ``eager`` the one in the file that the class of ``module`` is in."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    function: AttentionFunction = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)
    return function


def holds_adapters(model: PreTrainedModel) -> bool:
    """Return whether transformers' own ``load_adapter`` put adapters into ``model``."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def logits_processors(
    model: PreTrainedModel, arguments: Mapping[str, Any], prompt_tokens: int
) -> tuple[LogitsProcessorList, bool]:
    """Return what ``generate(**arguments)`` would do to the logits, and whether it would draw at random."""
    private: Any = model
    config = private._prepare_generation_config(None, **arguments)[0]
    private._prepare_special_tokens(config, True, device=model.device)
    device: torch.device = model.device
    found = private._get_logits_processor(config, input_ids_seq_length=prompt_tokens, device=device)
    return found, bool(config.do_sample)
