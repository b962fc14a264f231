"""What K/V look like, and what they may be shared within."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from kvboost.errors import TensorError

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape and dtype of one model's K/V.

    A chunk of ``T`` tokens is stored as one contiguous buffer, layer by layer: keys ``[kv_heads, T, key_dim]``
    then values ``[kv_heads, T, value_dim]``, so that a reader can begin with layer 0. Keys are stored as the
    model caches them, after RoPE at the donor's position.
    """

    num_layers: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise TensorError(f"layout dtype {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
        if min(self.num_layers, self.num_kv_heads, self.key_dim, self.value_dim) < 1:
            raise TensorError(f"layout {self} must have every size at least 1")

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token over all layers."""
        width = self.key_dim + self.value_dim
        return self.num_layers * self.num_kv_heads * width * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Namespace:
    """What K/V may be shared within; a match never crosses it.

    Every field is part of :attr:`key` under its own name, so that an adapter called like another request's
    tenant cannot collide.
    """

    model: str
    tokenizer: str
    rope: str
    layout: KVLayout
    adapter: str = ""
    tenant: str = ""

    @property
    def key(self) -> str:
        """Hex digest of all fields; the name the cache files this namespace under."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
