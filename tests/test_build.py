"""Parts are made as the configuration says."""

import pytest

from kvboost import build
from kvboost.build import build_cache, build_embedder, build_segmenter
from kvboost.client import CacheClient
from kvboost.config import CacheConfig, ClientConfig, EmbedderConfig, SegmentConfig
from kvboost.errors import ConfigError
from kvboost.index import LocalCache
from tests.boosting import document, prompt, tokenizer
from tests.contracts.chunks import namespace
from tests.fakes import NgramEmbedder

NO_EMBEDDER = EmbedderConfig(model="none")


def test_without_an_embedder_there_is_none():
    assert build_embedder(NO_EMBEDDER) is None


def test_a_named_embedder_loads_nothing_before_its_first_use():
    assert build_embedder(EmbedderConfig(model="no/such/model")) is not None


def test_without_an_address_the_cache_is_in_this_process():
    cache = build_cache(CacheConfig(max_bytes=12345, max_variants=3), ClientConfig(), NO_EMBEDDER)
    assert isinstance(cache, LocalCache)
    info = cache.open(namespace())
    assert (info.max_bytes, info.max_variants, info.embedder) == (12345, 3, "")
    cache.close()


@pytest.mark.parametrize("address", ["127.0.0.1:7461", "unix:/tmp/kvboost-none.sock"])
def test_an_address_makes_a_client(address):
    cache = build_cache(CacheConfig(address=address), ClientConfig(), NO_EMBEDDER)
    assert isinstance(cache, CacheClient)
    assert cache.address.endswith(address.removeprefix("unix:"))
    cache.close()


def test_a_malformed_address_is_refused():
    with pytest.raises(ConfigError, match="address"):
        CacheConfig(address="nonsense")


@pytest.mark.parametrize(("least", "most"), [(4, 8), (16, 64), (32, 40)])
def test_chunk_sizes_are_those_configured(least, most):
    segmenter = build_segmenter(SegmentConfig(min_tokens=least, max_tokens=most), NO_EMBEDDER, tokenizer())
    ids = prompt(document(1, sentences=6), document(2))[0].tolist()
    sizes = [len(chunk.span) for chunk in segmenter.segment(ids).chunks]
    assert max(sizes) <= most
    assert sum(sizes) / len(sizes) > least / 2


def test_learned_boundaries_ask_the_embedder(monkeypatch):
    embedder = NgramEmbedder()
    monkeypatch.setattr(build, "build_embedder", lambda config, progress=None: embedder)
    segmenter = build_segmenter(SegmentConfig(boundaries="embedding"), EmbedderConfig(), tokenizer())
    segmenter.segment(prompt(document(1, sentences=6))[0].tolist())
    assert embedder.texts


def test_sentence_boundaries_load_no_embedder(monkeypatch):
    def never(config, progress=None):
        raise AssertionError("an embedder was built")

    monkeypatch.setattr(build, "build_embedder", never)
    build_segmenter(SegmentConfig(), EmbedderConfig(), tokenizer())
