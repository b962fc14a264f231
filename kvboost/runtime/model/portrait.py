"""Everything that a model's K/V depend on, read with care, and what differs between two readings, in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from kvboost.runtime.attention.recording import attention_of
from kvboost.runtime.model.adapters import SCALARS, adapted, adapter_key, merged_adapters, original
from kvboost.runtime.model.support import changes_frequencies
from kvboost.runtime.model.tensors import device_sample, digest_of, host_sample, pointer_of, tensors_of, version_of

# Of the configuration: where files lie, who wrote them, how answers end. None of it changes K/V.
_NOT_THE_MODEL = frozenset({
    "_name_or_path", "transformers_version", "architectures", "use_cache", "pad_token_id", "bos_token_id",
    "eos_token_id", "vocab_size", "output_attentions", "output_hidden_states", "return_dict", "id2label", "label2id",
    "problem_type", "dtype", "torch_dtype", "quantization_config",
})  # fmt: skip
# Of a module: a vocabulary may grow, which its weights tell; some remember the longest prompt they saw.
_NOT_A_SETTING = frozenset(
    {"last_reuse", "name_or_path", "training", "num_embeddings", "out_features", "vocab_size", "padding_idx"}
)
_HARMLESS = ("kvboost.", "transformers.", "accelerate.")


@dataclass(frozen=True, slots=True)
class Portrait:
    """A model as its K/V see it.

    Attributes
    ----------
    config, rope
        Digests of the configuration and of the frequencies that positions turn by.
    weights
        Digest of every byte of every tensor that takes part, and of the modules' settings.
    adapter
        Of :func:`~kvboost.runtime.model.adapters.adapter_key`.
    modules
        Kind and settings of the model's own modules, by path; adapters' layers count as what they stand for.
    placement
        dtype and device of the model's own tensors, by path.
    attention
        The attention implementation.
    hooks
        Hooks and replaced ``forward`` whose effect on K/V nobody knows, by path.
    """

    config: str
    rope: str
    weights: str
    adapter: str
    modules: dict[str, str]
    placement: dict[str, tuple[str, str]]
    attention: str
    hooks: frozenset[tuple[str, int]]

    def difference(self, now: Portrait) -> str:
        """Name what makes the model another one to the engine since this portrait, or return an empty string.

        Other weights and adapters do not: they have a namespace of their own.
        """
        moved = _first_change(self.placement, now.placement)
        if moved:
            path, before, after = moved
            return f"{path} was {' on '.join(before)} at boost() and is {' on '.join(after)}"
        changed = _first_change(self.modules, now.modules)
        if changed:
            return f"the module {changed[0] or 'itself'} or its settings changed"
        if self.modules.keys() != now.modules.keys():
            return f"modules were added or removed, {min(self.modules.keys() ^ now.modules.keys())} among them"
        if self.config != now.config:
            return "its configuration changed"
        if self.rope != now.rope:
            return "the frequencies of its rotary embedding changed"
        if self.attention != now.attention:
            return f"its attention implementation was {self.attention!r} and is {now.attention!r}"
        if self.hooks != now.hooks:
            path = min(path for path, _ in self.hooks ^ now.hooks)
            return f"forward hooks or the forward of {path or 'the model'} changed"
        return ""


class Painter:
    """Makes portraits of one model; a tensor that was not written since is not read again."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._known: dict[int, tuple[Tensor, tuple[Any, ...], bytes]] = {}
        self._merged: list[str] = []

    def paint(self) -> Portrait:
        """Return the model's portrait as it is now."""
        model, dynamic = self._model, changes_frequencies(self._model)
        weights, rope = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
        modules: dict[str, str] = {}
        placement: dict[str, tuple[str, str]] = {}
        hooks: set[tuple[str, int]] = set()
        seen: dict[int, tuple[Tensor, tuple[Any, ...], bytes]] = {}
        self._forget_merged()
        idle: list[str] = []
        for path, own_path, module in _walk("", "", model):
            found = adapted(module)
            idle += [f"{path}.{name}" for name in found.idle] if found is not None else []
            if any(path == each or path.startswith(each + ".") for each in idle):
                continue
            hooks |= {(path, key) for key in _foreign(module)}
            turns = any(name.endswith("inv_freq") for name in module._buffers)
            if own_path is not None and found is None:
                modules[own_path] = _described(module, dynamic and turns)
            for name, tensor in tensors_of(module):
                full = f"{path}.{name}"
                if name.endswith("inv_freq"):
                    if not dynamic or "original" in name:
                        rope.update(full.encode() + self._digest(tensor, seen))
                elif full not in idle:
                    weights.update(full.encode() + self._digest(tensor, seen))
                    if own_path is not None and found is None:
                        placement[f"{own_path}.{name}"] = (str(tensor.dtype).removeprefix("torch."), str(tensor.device))
        self._known = seen
        weights.update(json.dumps(modules, sort_keys=True).encode())
        return Portrait(
            config=config_digest(model),
            rope=rope.hexdigest(),
            weights=weights.hexdigest(),
            adapter=adapter_key(model),
            modules=modules,
            placement=placement,
            attention=attention_of(model),
            hooks=frozenset(hooks),
        )

    def _forget_merged(self) -> None:
        """Read all anew where adapters were merged or taken out: peft writes through ``.data``, unseen."""
        merged = merged_adapters(self._model)
        if merged != self._merged:
            self._known, self._merged = {}, merged

    def _digest(self, tensor: Tensor, seen: dict[int, tuple[Tensor, tuple[Any, ...], bytes]]) -> bytes:
        if tensor.device.type == "meta":
            return b"meta"  # its placement tells
        mark = (pointer_of(tensor), version_of(tensor), host_sample(tensor)[2], device_sample([tensor]))
        kept = self._known.get(id(tensor))
        digest = kept[2] if kept is not None and kept[0] is tensor and kept[1] == mark else digest_of(tensor)
        seen[id(tensor)] = (tensor, mark, digest)
        return digest


def config_digest(model: PreTrainedModel) -> str:
    """Return a digest of what the configuration says about K/V."""
    settings = {k: v for k, v in model.config.to_diff_dict().items() if k not in _NOT_THE_MODEL}
    text = type(model).__qualname__ + json.dumps(settings, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _walk(path: str, own_path: str | None, module: nn.Module) -> Iterator[tuple[str, str | None, nn.Module]]:
    """Yield modules with their path, and their path in the model without adapters (None inside an adapter)."""
    yield path, own_path, module
    original_name = original(module) if adapted(module) is not None else None
    for name, child in module._modules.items():
        if child is None:
            continue
        below = f"{path}.{name}" if path else name
        own_below: str | None
        if original_name is not None:
            own_below = own_path if name == original_name else None
        else:
            own_below = None if own_path is None else f"{own_path}.{name}" if own_path else name
        yield from _walk(below, own_below, child)


def _described(module: nn.Module, changing: bool) -> str:
    """Return the kind and the plain settings of a module; not those that follow the prompt's length."""
    settings = {
        name: value
        for name, value in sorted(vars(module).items())
        if isinstance(value, SCALARS) and not name.startswith("_") and name not in _NOT_A_SETTING
    }
    return type(module).__qualname__ + json.dumps({} if changing else settings, default=str)


def _foreign(module: nn.Module) -> list[int]:
    """Return the hooks of a module, and its replaced ``forward``, but for those that are known to leave K/V alone."""
    own = vars(module)
    hooks = {**own["_forward_hooks"], **own["_forward_pre_hooks"]}
    found = [key for key, hook in hooks.items() if not _origin(hook).startswith(_HARMLESS)]
    replaced = own.get("forward")
    if replaced is not None and "_hf_hook" not in own and _behind(replaced) is not type(module).forward:
        found.append(-id(replaced))
    return found


def _origin(hook: Any) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    return str(getattr(hook, "__module__", ""))


def _behind(forward: Any) -> Any:
    """Return the function behind a compiled or bound ``forward``."""
    forward = getattr(forward, "_torchdynamo_orig_callable", forward)
    return getattr(forward, "__func__", forward)


def _first_change(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, Any, Any] | None:
    return next(((path, old, now[path]) for path, old in before.items() if path in now and now[path] != old), None)
