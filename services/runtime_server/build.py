"""From configuration to a model that can be served."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import kvboost
from kvboost.build import build_cache
from kvboost.config import Config
from kvboost.errors import CacheUnavailableError
from kvboost.protocols import ChunkCache
from kvboost.runtime.batching import Batch
from kvboost.runtime.model.demo_model import load_model
from kvboost.runtime.serve.answer import warm_up

from ..cache_server.build import build_served_cache
from ..progress import step
from .served import ServedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEMO_NAME = "SmolLM2-135M-Instruct"


@contextmanager
def served_model(config: Config) -> Iterator[tuple[ServedModel, Batch]]:
    """Load and boost the configured model, and start its batch; at the end, store what is pending and close the cache.

    Raises
    ------
    AssetError
        If the model cannot be loaded.
    ModelSupportError, TokenizerError
        If it cannot be boosted.
    CacheUnavailableError
        If no cache server answers at the configured address.
    """
    cache = _open_cache(config)  # first: to find it missing takes no time, to load a model does
    try:
        # In a thread that then ends, and with it torch's team of threads for it: the batch computes in its own thread,
        # and two teams would slow each other down (see kvboost.background.compute_alone).
        with ThreadPoolExecutor(1) as loading:
            model, tokenizer = loading.submit(_boosted, config, cache).result()
        engine = kvboost.engine_of(model)
        limits = config.runtime
        batch = Batch(engine, limits.max_batch, limits.max_queue, limits.prefill_tokens, limits.max_batch_bytes)
        try:
            with step("warming up"):
                batch.run(lambda: warm_up(engine))
            name = config.model.name_or_path or DEMO_NAME
            yield ServedModel(engine, tokenizer, name, config.cache.address, limits.publishes), batch
        finally:
            batch.close()
            kvboost.unboost(model)
    finally:
        cache.close()


def _boosted(config: Config, cache: ChunkCache) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the configured model and its tokenizer, and boost it."""
    chosen = config.model
    model, tokenizer = load_model(
        chosen.name_or_path or None,
        chosen.dtype,
        device=chosen.device,
        revision=chosen.revision,
        progress=step,
    )
    with step("checking what the model supports"):
        return kvboost.boost(model, tokenizer, cache, config=config), tokenizer


def _open_cache(config: Config) -> ChunkCache:
    """Return the cache at the configured address, once it has answered, or one in this process."""
    address = config.cache.address
    if not address:
        return build_served_cache(config)[0]
    cache = build_cache(config.cache, config.client, config.embedder)
    try:
        cache.stats()
    except CacheUnavailableError as error:
        cache.close()
        raise CacheUnavailableError(
            f"no cache server answers at {address} (cache.address); start one with: kvboost serve-cache"
        ) from error
    return cache
