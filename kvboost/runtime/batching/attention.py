"""Attention of a decode step over rows of different length: each row over its own K/V, without padding.

The linear layers of the unchanged model run over all rows together; only here the rows part. Each row is given to
the attention function that the model was loaded with, so that soft caps, sinks and scales are its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_PREFIX = "kvboost_rows_"


@dataclass(slots=True)
class RowsKV:
    """What each row's query sees in the layer under way, written by the cache just before attention reads it.

    Attributes
    ----------
    keys, values
        One ``[1, kv_heads, length, dim]`` per row, of different lengths: views of the rows' own slabs.
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


_ROWS: ContextVar[RowsKV | None] = ContextVar("kvboost_rows", default=None)


@contextmanager
def attending(model: PreTrainedModel, rows: RowsKV) -> Iterator[None]:
    """Have each row attend to its own K/V in this thread; callers take turns, since the model is switched.

    A pass of another thread meanwhile gets the attention that the model was loaded with.
    """
    before = model.config._attn_implementation
    token = _ROWS.set(rows)
    model.config._attn_implementation = _registered(before)
    try:
        yield
    finally:
        model.config._attn_implementation = before
        _ROWS.reset(token)


def _registered(base: str) -> str:
    """Return the name under which attention by rows over ``base`` is registered, with masks as for ``base``."""
    name = _PREFIX + base
    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, _make_function(base))
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[base])
    return name


def _make_function(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: object
    ) -> tuple[Tensor, Tensor | None]:
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        function = ALL_ATTENTION_FUNCTIONS.get_interface(base, eager)
        rows = _ROWS.get()
        if rows is None:
            result: tuple[Tensor, Tensor | None] = function(module, query, key, value, mask, **kwargs)
            return result
        # The newest token sees everything before it (the cache has cut windows to size), so no mask is needed.
        outputs = [
            function(module, query[i : i + 1], keys, values, None, **kwargs)[0]
            for i, (keys, values) in enumerate(zip(rows.keys, rows.values, strict=True))
        ]
        return torch.cat(outputs), None

    return attention
