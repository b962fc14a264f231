"""The rows of one call in one cache."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from kvboost.runtime.kv.slab import HEAD_ROOM_TOKENS, SlabCache
from kvboost.runtime.kv.slab_pool import SlabPool
from kvboost.runtime.prepare.prepared import Prepared
from kvboost.runtime.serve.request import Request


def joined(model: PreTrainedModel, slabs: SlabPool, request: Request, prepared: Sequence[Prepared]) -> SlabCache:
    """Return one left-padded cache for all rows, holding everything but each row's last token.

    Parameters
    ----------
    slabs
        Where the rows' own slabs go back to.
    """
    width = max(row.padding + len(row.token_ids) for row in request.rows)
    batch = len(request.rows) * request.expand
    layout = prepared[0].splice.support.layout
    cache = SlabCache(layout, width + request.new_tokens + HEAD_ROOM_TOKENS, model.device, batch)
    if not any(ready.plan.reuse for ready in prepared):
        return cache  # nothing to join: transformers prefills the whole batch at once
    for i, (row, ready) in enumerate(zip(request.rows, prepared, strict=True)):
        end = len(row.token_ids) - 1
        ready.splice.run(model, end)
        rows = slice(i * request.expand, (i + 1) * request.expand)
        own = ready.splice.cache
        cache.key_slab[:, rows, :, row.padding : row.padding + end] = own.key_slab[:, :, :, :end]
        cache.value_slab[:, rows, :, row.padding : row.padding + end] = own.value_slab[:, :, :, :end]
        slabs.give(own)
    cache.set_length(width - 1)
    return cache
