"""One decode step over rows of different length."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from kvboost.runtime.attention.masks import layer_types, position_masks
from kvboost.runtime.attention.transformers_api import DynamicLayer
from kvboost.runtime.batching.attention import RowsKV, attending
from kvboost.runtime.kv.slab import SlabCache


class _RowsLayer(DynamicLayer):
    """One layer of a step: appends each row's K/V to that row's own slab, and says what each row sees.

    Parameters
    ----------
    window
        How many of its newest tokens a row sees in this layer; None for all.
    """

    def __init__(self, layer_idx: int, caches: Sequence[SlabCache], rows: RowsKV, window: int | None) -> None:
        super().__init__()
        self.is_initialized = True
        self._layers = [cache.layers[layer_idx] for cache in caches]
        self._rows = rows
        self._window = window

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append ``[rows, kv_heads, 1, dim]``; what is returned is not what attention reads."""
        pairs = [layer.update(key_states[i : i + 1], value_states[i : i + 1]) for i, layer in enumerate(self._layers)]
        start = 0 if self._window is None else -self._window
        self._rows.keys = [keys[:, :, start:] for keys, _ in pairs]
        self._rows.values = [values[:, :, start:] for _, values in pairs]
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Return the length of the longest row."""
        return max(int(layer.get_seq_length()) for layer in self._layers)


class _RowsCache(DynamicCache):
    """The cache of one step."""

    def __init__(self, model: PreTrainedModel, caches: Sequence[SlabCache], rows: RowsKV) -> None:
        super().__init__()
        self.layers = [_RowsLayer(i, caches, rows, window) for i, window in enumerate(layer_windows(model, caches[0]))]
        self.layer_class_to_replicate = None


def layer_windows(model: PreTrainedModel, cache: SlabCache) -> list[int | None]:
    """Return by layer how many of the newest tokens a query sees; None for all. As :func:`position_masks` masks."""
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    types = layer_types(model)
    if types is None:
        everywhere = window if getattr(config, "use_sliding_window", True) else None
        return [everywhere] * len(cache.layers)
    return [window if kind == "sliding_attention" else None for kind in types]


@torch.no_grad()
def decode_step(
    model: PreTrainedModel, caches: Sequence[SlabCache], tokens: Sequence[int], turn: AbstractContextManager[object]
) -> Tensor:
    """Run one token of each row and append its K/V.

    Parameters
    ----------
    caches
        One per row; row ``i`` holds the ``L_i`` tokens before ``tokens[i]``, and one more afterwards.
    turn
        Entered while the model is switched to attention by rows.

    Returns
    -------
    Tensor
        ``[rows, vocab]`` logits.
    """
    ids = torch.tensor(tokens, device=model.device)[:, None]
    positions = torch.tensor([cache.get_seq_length() for cache in caches], device=model.device)[:, None]
    # Attention by rows reads no mask; a ready one of any size keeps transformers from making its own.
    ready = position_masks(model, torch.zeros(1, dtype=torch.long, device=model.device), 1)
    rows = RowsKV()
    with turn, attending(model, rows):
        output = model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=ready,
            cache=_RowsCache(model, caches, rows),
            use_cache=True,
        )
    logits: Tensor = output.logits[:, -1]
    return logits
