"""Whether a model is still what it was, asked at every request: cheap, and never yes where it is no.

A stamp remembers every module and tensor by object, with the tensors' addresses, version counters and a few of their
bytes, the modules' own attributes, hooks and mutable settings, and the configuration. Where anything differs the model
*may* have changed; whether it did is then found out with care (:mod:`kvboost.runtime.model.identity`).
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from kvboost.runtime.model.tensors import device_sample, host_sample, pointer_of, version_of

# What boost() and generate() themselves set on a model.
_OURS = frozenset({
    "kvboost_engine", "last_reuse", "generate", "generation_config", "init_continuous_batching", "__deepcopy__",
    "__reduce_ex__",
})  # fmt: skip
_INNER = ("_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks")
_EVERY_MODULE = frozenset(vars(nn.Module()))


class Stamp:
    """A model as it is now.

    It keeps the modules that it saw alive, so that none is taken for another at the same address; their memory is not
    kept where the model lets go of it (``.to()``, ``.data = ``).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._config = copy.deepcopy(vars(model.config))
        modules = list(model.modules())
        # Of the root only what is not ours: generate() itself sets attributes there.
        self._root = _root_attributes(model)
        self._own = [vars(module) for module in modules[1:]]
        self._attributes = [list(own.values()) for own in self._own]
        inner = [vars(module)[name] for module in modules for name in _INNER]
        self._empty = [each for each in inner if not each]
        self._inner = [each for each in inner if each]
        self._held = [list(each.values()) for each in self._inner]
        self._settings = [(value, copy.deepcopy(value)) for module in modules for value in _mutable(vars(module))]
        self._tensors = _tensors(modules)
        self._samples = [host_sample(tensor) for tensor in self._tensors]
        self._places = [(at, length) for at, length, _ in self._samples]
        self._bytes = [sample for *_, sample in self._samples]
        self._pointers = [pointer_of(tensor) for tensor in self._tensors]
        self._versions = [version_of(tensor) for tensor in self._tensors]
        self._on_device = device_sample(self._tensors)

    def holds(self) -> bool:
        """Return whether nothing differs."""
        try:
            return self._same_modules() and self._same_tensors()
        except (RuntimeError, ValueError, TypeError):
            return False  # attributes that do not compare, such as tensors: they are other objects

    def _same_modules(self) -> bool:
        # Lists compare by object first: what is unchanged costs nanoseconds.
        return (
            vars(self._model.config) == self._config
            and _root_attributes(self._model) == self._root
            and [list(own.values()) for own in self._own] == self._attributes
            and not any(self._empty)
            and [list(each.values()) for each in self._inner] == self._held
            and all(now == before for now, before in self._settings)
        )

    def _same_tensors(self) -> bool:
        string_at = ctypes.string_at
        return (
            [pointer_of(tensor) for tensor in self._tensors] == self._pointers
            and [version_of(tensor) for tensor in self._tensors] == self._versions
            # The memory is the tensors' own: they have not moved.
            and [string_at(at, length) for at, length in self._places] == self._bytes
            and (not self._on_device or device_sample(self._tensors) == self._on_device)
        )


def _root_attributes(model: PreTrainedModel) -> list[Any]:
    return [value for name, value in vars(model).items() if name not in _OURS]


def _mutable(own: Mapping[str, Any]) -> list[Any]:
    """Return settings that an adapter, say, changes in place."""
    return [v for name, v in own.items() if type(v) in (list, dict, set) and name not in _EVERY_MODULE]


def _tensors(modules: list[nn.Module]) -> list[Tensor]:
    held = [vars(module)[name] for module in modules for name in ("_parameters", "_buffers")]
    return list({id(tensor): tensor for each in held for tensor in each.values() if tensor is not None}.values())
