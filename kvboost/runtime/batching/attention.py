"""Attention of a decode step over rows of different length: each row over its own K/V, without padding.

The linear layers of the unchanged model run over all rows together; only here the rows part. Each row is given to
the attention function that the model was loaded with, so that soft caps, sinks and scales are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvboost.runtime.attention.transformers_api import (
    attention_name,
    base_attention,
    has_attention,
    mask_function,
    register_attention,
    set_attention_name,
)

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
    before = attention_name(model)
    token = _ROWS.set(rows)
    set_attention_name(model, _registered(before))
    try:
        yield
    finally:
        set_attention_name(model, before)
        _ROWS.reset(token)


def _registered(base: str) -> str:
    """Return the name under which attention by rows over ``base`` is registered, with masks as for ``base``."""
    name = _PREFIX + base
    if not has_attention(name):
        register_attention(name, _make_function(base), mask_function(base))
    return name


def _make_function(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: object
    ) -> tuple[Tensor, Tensor | None]:
        function = base_attention(base, module)
        rows = _ROWS.get()
        if rows is None:
            return function(module, query, key, value, attention_mask, **kwargs)
        # The newest token sees everything before it (the cache has cut windows to size), so no mask is needed.
        outputs = [
            function(module, query[i : i + 1], keys, values, None, **kwargs)[0]
            for i, (keys, values) in enumerate(zip(rows.keys, rows.values, strict=True))
        ]
        return torch.cat(outputs), None

    return attention
