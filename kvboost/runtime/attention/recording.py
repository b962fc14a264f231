"""Which keys a few query tokens attend to, read off the unchanged model while it runs.

The model is switched to a registered attention function for one pass. That function takes the recorder from
the context of its own thread: a pass of another thread meanwhile finds none and gets the attention it asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvboost.runtime.attention.grouped import GROUPED
from kvboost.runtime.attention.transformers_api import (
    attention_name,
    base_attention,
    mask_function,
    register_attention,
    set_attention_name,
)

_RECORDER: ContextVar[AttentionRecorder | None] = ContextVar("kvboost_recorder", default=None)
_PREFIX = "kvboost_recording_"
_TINY = torch.finfo(torch.float32).tiny
_SCORE_ELEMENTS = 1 << 23  # of one block of rows over all heads: 32 MiB in fp32, a few times over
_OWN = re.compile("^(kvboost_[a-z]+_)+")  # how our attentions are named, before the one that each stands for


def attention_of(model: PreTrainedModel) -> str:
    """Return the attention that ``model`` was loaded with, also while it is switched to one of ours."""
    return _OWN.sub("", attention_name(model))


def takes_additive_masks(model: PreTrainedModel) -> bool:
    """Return whether ``model``'s attention wants a mask that is added to the scores, not a boolean one."""
    return attention_name(model).endswith((GROUPED, "eager"))


@dataclass
class AttentionRecorder:
    """Sums the attention that each key receives; written to by the attention function during one pass.

    Attributes
    ----------
    total
        ``[length]`` fp32, the sum over layers of the mean over heads and query tokens.
    carried
        ``[length]`` fp32, the same with each weight times the norm of the value that it carries, relative to the mean
        norm of its head: what a token adds to the output, not only how much it is looked at (Kobayashi et al.,
        "Attention is not only a weight", EMNLP 2020).
    layers
        How many layers were recorded.
    """

    total: Tensor
    carried: Tensor = field(init=False)
    layers: int = 0

    def __post_init__(self) -> None:
        self.carried = torch.zeros_like(self.total)

    def add(self, weights: Tensor, values: Tensor) -> None:
        """Add a layer: by head the mean weight of each key, ``[kv_heads, length]``, and ``[kv_heads, length, dim]``."""
        norms = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float32)
        self.total += weights.mean(dim=0)
        self.carried += (weights * (norms / norms.mean(dim=-1, keepdim=True).clamp_min(_TINY))).mean(dim=0)
        self.layers += 1


@contextmanager
def recording(model: PreTrainedModel, recorder: AttentionRecorder) -> Iterator[None]:
    """Have ``model``'s attention recorded in this thread; callers take turns, since the model is switched."""
    token = _RECORDER.set(recorder)
    before = attention_name(model)
    set_attention_name(model, _PREFIX + before)
    try:
        yield
    finally:
        set_attention_name(model, before)
        _RECORDER.reset(token)


def recorded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    recorder: AttentionRecorder,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Attention over grouped heads that sums its weights; batch size 1, mask boolean or additive.

    Rows are taken a few at a time, so that the weights over a long prompt need little memory.

    Returns
    -------
    tuple
        Output ``[1, Q, heads, value_dim]``, as transformers' attention functions return it.
    """
    _, heads, count, dim = query.shape
    kv_heads, length = key.shape[1:3]
    rows = max(1, _SCORE_ELEMENTS // (heads * length))
    received = torch.zeros(kv_heads, length, device=key.device)
    outputs = []
    for start in range(0, count, rows):
        block = query[0, :, start : start + rows] * (dim**-0.5 if scaling is None else scaling)
        scores = torch.matmul(block.reshape(kv_heads, -1, dim), key[0].transpose(1, 2)).float()
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        bias = None if mask is None else mask[0, 0, start : start + rows]
        weights = _weights(scores.view(heads, -1, length), bias, s_aux).view(kv_heads, -1, length)
        received += weights.sum(dim=1)
        outputs.append(torch.matmul(weights.to(value.dtype), value[0]).view(heads, block.shape[1], -1))
    recorder.add(received / (heads // kv_heads * count), value[0])
    return torch.cat(outputs, dim=1).transpose(0, 1)[None], None


def _weights(scores: Tensor, bias: Tensor | None, s_aux: Tensor | None) -> Tensor:
    """Return the attention weights for ``scores`` ``[heads, Q, length]`` under a mask ``[Q, length]``."""
    if bias is not None:
        scores = scores.masked_fill(~bias, float("-inf")) if bias.dtype == torch.bool else scores + bias.float()
    if s_aux is None:
        return scores.softmax(dim=-1)
    sink = s_aux.float().view(-1, 1, 1).expand(-1, scores.shape[1], 1)
    return torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]


def _make_function(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: object
    ) -> tuple[Tensor, Tensor | None]:
        recorder = _RECORDER.get()
        if recorder is not None:
            known = {name: kwargs.get(name) for name in ("scaling", "softcap", "s_aux")}
            return recorded_attention(module, query, key, value, attention_mask, recorder, **known)  # type: ignore[arg-type]
        return base_attention(base, module)(module, query, key, value, attention_mask, **kwargs)

    return attention


for _base in ("sdpa", "eager", GROUPED):
    register_attention(_PREFIX + _base, _make_function(_base), mask_function(_base))
