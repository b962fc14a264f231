"""The model's own ``generate()``, guided: hooks on the model widen its first forward pass, time it, and look at it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from kvboost.errors import NonFiniteError
from kvboost.runtime.audit.shadow import Watch
from kvboost.runtime.kv.finite import without_distribution
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.kv.splice import Splice
from kvboost.runtime.model.device import synchronize
from kvboost.runtime.serve.call import Call


class BrokenLogitsError(NonFiniteError):
    """The first pass over reused K/V gave no distribution over the next token, in these ``rows`` of the pass."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__("the logits over reused K/V are infinite or not a number")
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Ran:
    """What a call returned.

    Attributes
    ----------
    ttft_s
        From the call to the first token's logits.
    setup_s
        What ``generate()`` did before its first pass.
    broken
        The rows whose first logits give no distribution, where they were looked at.
    """

    result: Any
    ttft_s: float
    setup_s: float = 0.0
    broken: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Guide:
    """What a call of ``generate()`` is guided by.

    Attributes
    ----------
    cache
        Holds what is not to be computed.
    splice
        What is, where that is more than a suffix.
    watch
        Sees the first pass, and all that follow.
    borrowed
        Whether the cache holds reused K/V: the call then ends before the first token where they lead nowhere.
    """

    cache: SlabCache
    splice: Splice | None = None
    watch: Watch | None = None
    borrowed: bool = False


class _FirstPass(threading.local):
    """What the next forward pass of this thread is: armed just before ``generate()`` is called."""

    armed = False
    guide: Guide | None = None
    begun_s: float | None = None
    finished_s: float | None = None
    broken: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.scope = ExitStack()


class GuidedGenerate:
    """Calls ``generate()``; the hooks act only in the thread that does.

    Parameters
    ----------
    plain_generate
        The model's own ``generate()``.
    """

    def __init__(self, model: PreTrainedModel, plain_generate: Callable[..., Any]) -> None:
        self._model = model
        self._plain_generate = plain_generate
        self._first = _FirstPass()
        self._hooks = (
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward),
        )

    def run(self, call: Call, guide: Guide | None = None) -> Ran:
        """Run the call, plainly without a guide.

        Raises
        ------
        BrokenLogitsError
            Instead of a first token that reused K/V cannot give; nothing was told to a streamer but the prompt.
        """
        if guide is not None and guide.splice is not None:
            guide = replace(guide, splice=guide.splice.ahead(self._model, len(guide.splice.token_ids)))
        first, called_s = self._first, time.perf_counter()
        first.armed, first.guide, first.broken = True, guide, ()
        first.begun_s = first.finished_s = None
        arguments = call.arguments if guide is None else {**call.arguments, "cache": guide.cache}
        try:
            result = self._plain_generate(call.inputs, **arguments)
        finally:
            first.scope.close()
            first.armed, first.guide = False, None
        ttft_s = (first.finished_s or time.perf_counter()) - call.start_s
        return Ran(result, ttft_s, (first.begun_s or called_s) - called_s, first.broken)

    def remove(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    @property
    def hook_ids(self) -> frozenset[int]:
        """The keys of the hooks on the model."""
        return frozenset(hook.id for hook in self._hooks)

    def _before_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Widen the first forward pass of an armed ``generate()`` to the scattered tokens."""
        if self._first.armed and self._first.begun_s is None:
            self._first.begun_s = time.perf_counter()
        splice = self._first.guide.splice if self._first.guide is not None else None
        if not self._first.armed or splice is None or len(splice.scattered) == 0:
            return None
        arguments = self._first.scope.enter_context(splice.passing(self._model, len(splice.token_ids)))
        return args, {**kwargs, **arguments}

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        first = self._first
        if first.armed:
            first.armed = False
            synchronize(self._model.device)
            first.finished_s = time.perf_counter()
            first.scope.close()
            if first.guide is not None:
                first.broken = tuple(without_distribution(output.logits[:, -1]))
                if first.broken and first.guide.borrowed:
                    raise BrokenLogitsError(first.broken)
        if first.guide is not None and first.guide.watch is not None:
            first.guide.watch.see(output.logits)
