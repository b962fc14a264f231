"""Adapters of ``peft`` inside a model: which take part, and how.

Read from the adapters' own layers, which ``get_peft_model``, ``PeftModel`` and transformers' ``load_adapter`` put into
a model alike: LoRA with its variants, IA3 and the like, modules saved beside an adapter, trained tokens. peft itself
is not needed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

# What an adapter's layer keeps of the module that it stands for.
_ORIGINAL = ("base_layer", "original_module")
SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Adapted:
    """An adapter's layer: what takes part in it, and the parts of it that do not, by path below the layer."""

    state: dict[str, Any]
    idle: tuple[str, ...]


def adapted(module: nn.Module) -> Adapted | None:
    """Return how adapters take part in ``module``, or None if it is no adapter's layer."""
    if isinstance(module, PreTrainedModel) or not hasattr(module, "disable_adapters"):
        return None
    active = [] if module.disable_adapters else _names(getattr(module, "active_adapters", []))
    merged = _names(getattr(module, "merged_adapters", []))
    used = {*active, *merged}
    own = vars(module)
    state = {
        "kind": type(module).__qualname__,
        "active": active,
        "merged": merged,
        "settings": {name: _settings(value, used) for name, value in sorted(own.items()) if name not in _CHOICE},
    }
    trained = {name: module._modules.get(name) for name in getattr(module, "adapter_layer_names", ())}
    adapters = {(name, key) for name, held in trained.items() if held is not None for key in _keys(held)}
    return Adapted(state, tuple(f"{name}.{key}" for name, key in sorted(adapters) if key not in used))


_CHOICE = frozenset({"_active_adapter", "_disable_adapters", "merged_adapters", "training"})


def original(module: nn.Module) -> str | None:
    """Return the name of the child of an adapter's layer that is the model's own module."""
    return next((name for name in _ORIGINAL if module._modules.get(name) is not None), None)


def adapter_key(model: PreTrainedModel) -> str:
    """Return a digest of which adapters take part and how, or an empty string without adapters."""
    states = [(name, found.state) for name, module in model.named_modules() if (found := adapted(module)) is not None]
    if not states:
        return ""
    return hashlib.blake2b(json.dumps(states, default=str).encode(), digest_size=16).hexdigest()


def merged_adapters(model: PreTrainedModel) -> list[str]:
    """Return which adapters are merged into the weights of which module."""
    merged = ((name, getattr(module, "merged_adapters", None)) for name, module in model.named_modules())
    return [f"{name}: {_names(each)}" for name, each in merged if each]


def _names(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _keys(held: nn.Module) -> list[str]:
    return [*held._modules, *held._parameters, *held._buffers]


def _settings(value: Any, used: set[str]) -> Any:
    """Return a setting as far as it concerns the adapters in use; None for what is no setting."""
    if isinstance(value, dict):
        return {key: value[key] for key in sorted(used & value.keys()) if isinstance(value[key], SCALARS)}
    return value if isinstance(value, SCALARS) else None
