"""The namespace of a loaded model: everything its K/V depend on."""

from __future__ import annotations

import hashlib
import json

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvboost.runtime.model.portrait import Painter, Portrait
from kvboost.runtime.model.support import ModelSupport
from kvboost.types import Namespace


def namespace_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, support: ModelSupport, tenant: str = ""
) -> Namespace:
    """Return the namespace of ``model`` with its active adapters, as it is now."""
    return namespace_from(Painter(model).paint(), model, tokenizer_digest(tokenizer), support, tenant)


def namespace_from(
    portrait: Portrait, model: PreTrainedModel, tokenizer: str, support: ModelSupport, tenant: str = "", only: str = ""
) -> Namespace:
    """Return the namespace of a model that was read already.

    Parameters
    ----------
    tokenizer
        Its :func:`tokenizer_digest`.
    only
        Kept apart from equal models under another such name.
    """
    weights = hashlib.blake2b(digest_size=16)
    for each in (portrait.config, portrait.weights, portrait.rope, only):
        weights.update(each.encode())
    return Namespace(
        model=f"{type(model).__name__}#{weights.hexdigest()}",
        tokenizer=tokenizer,
        rope=_rope_digest(support),
        layout=support.layout,
        adapter=portrait.adapter,
        tenant=tenant,
    )


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of the tokenizer's vocabulary and special tokens."""
    text = json.dumps([sorted(tokenizer.get_vocab().items()), sorted(tokenizer.special_tokens_map.items(), key=str)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _rope_digest(support: ModelSupport) -> str:
    ropes = [None if rope is None else (rope.pairing.value, rope.inv_freq) for rope in support.ropes]
    return hashlib.blake2b(json.dumps(ropes).encode(), digest_size=16).hexdigest()
