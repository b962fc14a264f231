"""Parts made as the configuration says; shared by the drop-in and the services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvboost.assets import Progress, embedder_dir
from kvboost.config import CacheConfig, ClientConfig, EmbedderConfig, SegmentConfig
from kvboost.protocols import ChunkCache, Embedder, PromptSegmenter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STATIC_BATCH = 1024
"""A static embedding is little more than a look-up: most of a small batch's time is what every batch costs."""


def build_embedder(config: EmbedderConfig, progress: Progress | None = None) -> Embedder | None:
    """Return the configured embedder, or None for ``none``. It loads its model at first use.

    Raises
    ------
    AssetError
        If the default model is not on this machine and cannot be downloaded.
    """
    if config.model == "none":
        return None
    from kvboost.index import SentenceTransformerEmbedder

    if config.model == "static":
        from kvboost.index.embedder_static import static_embedder_dir

        root = static_embedder_dir(embedder_dir(progress=progress), progress=progress)
        return SentenceTransformerEmbedder(root, device="cpu", batch_size=STATIC_BATCH)
    return SentenceTransformerEmbedder(embedder_dir(progress=progress) if config.model == "auto" else config.model)


def build_cache(cache: CacheConfig, client: ClientConfig, embedder: EmbedderConfig) -> ChunkCache:
    """Return the cache at ``cache.address``, or one in this process if that is empty."""
    if cache.address:
        from kvboost.client import CacheClient

        return CacheClient(
            cache.address,
            timeout_s=client.timeout_s,
            match_timeout_s=client.match_timeout_s,
            fetch_timeout_s=client.fetch_timeout_s,
            put_timeout_s=client.put_timeout_s,
            shared_memory=client.shared_memory,
        )
    from kvboost.index import LocalCache

    return LocalCache(cache.max_bytes, build_embedder(embedder), cache.max_variants)


def build_segmenter(
    config: SegmentConfig, embedder: EmbedderConfig, tokenizer: PreTrainedTokenizerBase
) -> PromptSegmenter:
    """Return the configured segmenter; it has an embedder of its own only for learned boundaries."""
    from kvboost.segment import Segmenter

    vectors = build_embedder(embedder) if config.boundaries == "embedding" else None
    return Segmenter(
        tokenizer,
        config.min_tokens,
        config.max_tokens,
        config.boundaries,  # type: ignore[arg-type]
        config.language,
        vectors,
    )
