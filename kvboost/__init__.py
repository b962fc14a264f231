"""KVBoost: a semantic chunk cache service for the K/V tensors of Hugging Face models.

Names are imported at first use, so that a gRPC client does not load torch, and need not have it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvboost.extras import require

if TYPE_CHECKING:
    from kvboost.api import boost, engine_of, unboost
    from kvboost.client import CacheClient
    from kvboost.index import LocalCache
    from kvboost.policy import ReusePolicy
    from kvboost.reuse import ReuseReport

__version__ = "0.1.0"

_HOMES = {
    "boost": "kvboost.api",
    "engine_of": "kvboost.api",
    "unboost": "kvboost.api",
    "CacheClient": "kvboost.client",
    "LocalCache": "kvboost.index",
    "ReusePolicy": "kvboost.policy",
    "ReuseReport": "kvboost.reuse",
}

_EXTRAS = {"boost": "runtime", "engine_of": "runtime", "unboost": "runtime", "LocalCache": "cache"}

__all__ = ["CacheClient", "LocalCache", "ReusePolicy", "ReuseReport", "__version__", "boost", "engine_of", "unboost"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kvboost' has no attribute {name!r}")
    if name in _EXTRAS:
        require(_EXTRAS[name], f"kvboost.{name}")
    return getattr(import_module(home), name)
