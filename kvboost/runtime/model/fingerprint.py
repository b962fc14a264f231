"""The namespace of a loaded model: everything its K/V depend on."""

from __future__ import annotations

import hashlib
import json

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvboost.runtime.attention.transformers_api import holds_adapters
from kvboost.runtime.model.support import ModelSupport
from kvboost.types import Namespace

SAMPLES_PER_TENSOR = 64
_NOT_THE_MODEL = {"_name_or_path", "transformers_version", "architectures"}


def namespace_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, support: ModelSupport, tenant: str = ""
) -> Namespace:
    """Return the namespace of ``model``, with its active adapters."""
    return Namespace(
        model=f"{type(model).__name__}#{weights_digest(model)}",
        tokenizer=tokenizer_digest(tokenizer),
        rope=_rope_digest(support),
        layout=support.layout,
        adapter=adapter_key(model),
        tenant=tenant,
    )


def weights_digest(model: PreTrainedModel) -> str:
    """Return a digest of names, shapes, dtypes and a sample of values of all parameters.

    A sample of 64 values spread over each tensor tells apart checkpoints, fine-tunes and merged adapters
    without reading gigabytes; it is no proof against weights altered on purpose.
    """
    digest = hashlib.blake2b(digest_size=16)
    # Where the files lie and who wrote them does not change K/V: two copies of a model share.
    settings = {k: v for k, v in model.config.to_diff_dict().items() if k not in _NOT_THE_MODEL}
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" in name:
            continue
        flat = parameter.detach().flatten()
        step = max(1, flat.numel() // SAMPLES_PER_TENSOR)
        sample = flat[::step][:SAMPLES_PER_TENSOR].to("cpu", torch.float32).contiguous()
        digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()


def adapter_key(model: PreTrainedModel) -> str:
    """Return a digest of the active adapters' names and weights, or an empty string without adapters."""
    if not holds_adapters(model):
        return ""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(sorted(model.active_adapters())).encode())
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" in name:
            digest.update(name.encode())
            digest.update(parameter.detach().flatten()[:SAMPLES_PER_TENSOR].to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of the tokenizer's vocabulary and special tokens."""
    text = json.dumps([sorted(tokenizer.get_vocab().items()), sorted(tokenizer.special_tokens_map.items(), key=str)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _rope_digest(support: ModelSupport) -> str:
    ropes = [None if rope is None else (rope.pairing.value, rope.inv_freq) for rope in support.ropes]
    return hashlib.blake2b(json.dumps(ropes).encode(), digest_size=16).hexdigest()
