"""What ``boost()`` puts on a model beside its hooks, and how copies come without any of it.

A copy of a boosted model, by ``copy.deepcopy``, ``pickle`` or ``torch.save``, is the plain model: threads, locks and
connections cannot be copied, and what two models share a cache for is decided by :func:`kvboost.boost` alone. A pickled
one can be loaded where KVBoost is not installed.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from kvboost.runtime.attention.grouped import use_own
from kvboost.runtime.serve.engine import Engine

ENGINE = "kvboost_engine"
_METHODS = ("generate", "init_continuous_batching", "__deepcopy__", "__reduce_ex__")
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def attach(model: PreTrainedModel, engine: Engine) -> None:
    """Have ``engine`` serve ``model.generate()``."""
    plain_batching = model.init_continuous_batching

    def generate(self: PreTrainedModel, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        result, self.last_reuse = engine.generate(inputs, *args, **kwargs)
        return result

    def init_continuous_batching(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        """As the model's own; it knows the attentions of transformers alone, so ours is left from then on."""
        use_own(self)
        return plain_batching(*args, **kwargs)

    def deep_copied(self: PreTrainedModel, memo: dict[int, Any]) -> PreTrainedModel:
        return _plain_copy(self, engine, memo)

    def reduced(self: PreTrainedModel, protocol: Any) -> Any:
        """Reduce a plain model that shares this one's tensors."""
        tensors: dict[int, Any] = {id(tensor): tensor for tensor in (*self.parameters(), *self.buffers())}
        return _plain_copy(self, engine, tensors).__reduce_ex__(protocol)

    setattr(model, ENGINE, engine)
    model.last_reuse = None
    methods: tuple[Callable[..., Any], ...] = (generate, init_continuous_batching, deep_copied, reduced)
    for name, method in zip(_METHODS, methods, strict=True):
        setattr(model, name, types.MethodType(method, model))


def detach(model: PreTrainedModel) -> None:
    """Undo :func:`attach`."""
    for name in (ENGINE, "last_reuse", *_METHODS):
        delattr(model, name)


def _plain_copy(model: PreTrainedModel, engine: Engine, memo: dict[int, Any]) -> PreTrainedModel:
    """Copy everything but what ``boost()`` put there; ``memo`` as :func:`copy.deepcopy` takes it."""
    copied: PreTrainedModel = object.__new__(type(model))
    memo[id(model)] = copied
    state = {name: value for name, value in vars(model).items() if name not in (ENGINE, "last_reuse", *_METHODS)}
    for name in _HOOKS:
        hooks = state[name]
        state[name] = type(hooks)((key, hook) for key, hook in hooks.items() if key not in engine.hook_ids)
    copied.__setstate__(copy.deepcopy(state, memo))
    use_own(copied)
    return copied
