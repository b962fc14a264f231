"""A faulty cache costs time, never the answer."""

import warnings
from dataclasses import replace

import pytest
import torch

from kvboost.checksum import checksum
from kvboost.errors import (
    CacheUnavailableError,
    ChecksumError,
    FallbackWarning,
    InputError,
    LayoutMismatchError,
    PromptError,
    QuotaError,
    TruncatedStreamError,
    UnknownNamespaceError,
)
from kvboost.policy import ReusePolicy
from kvboost.types import ChunkKV, Tier
from tests.boosting import boosted, document, new_cache, plain, prompt, reused, segmenter, settle, warm
from tests.faulty_cache import FaultyCache

WARM = prompt(document(1), document(2), document(3))
IDS = prompt(document(3), document(2), document(1))
ARGUMENTS = {"do_sample": False, "max_new_tokens": 8}
ERRORS = [
    CacheUnavailableError("gone"),
    TruncatedStreamError("cut off"),
    ChecksumError("damaged"),
    UnknownNamespaceError("unknown"),
    LayoutMismatchError("other layout"),
    QuotaError("full"),
]


@pytest.fixture
def faulty():
    """A boosted model over a warm cache whose next faults are still to be planted."""
    cache = FaultyCache(new_cache())
    with boosted(cache=cache, policy=ReusePolicy(repair="none")) as model:
        warm(model, WARM)
        yield model, cache
        cache.raises.clear()


def assert_falls_back(model, error, ids=IDS):
    before = model.kvboost_engine.counters.snapshot().get("fallbacks", 0)
    with pytest.warns(FallbackWarning, match="full prefill instead of reuse"):
        result = model.generate(ids, **ARGUMENTS)
    assert torch.equal(result, plain(model, ids, **ARGUMENTS))
    assert model.kvboost_engine.counters.snapshot()["fallbacks"] == before + 1
    assert error in model.last_reuse.fallback
    assert model.last_reuse.reused_tokens == 0
    assert model.last_reuse.tokens_by_tier[Tier.COMPUTED] == ids.shape[1]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("method", ["match", "fetch"])
def test_an_error_of_the_cache_means_full_prefill(faulty, method, error):
    model, cache = faulty
    cache.raises[method] = error
    assert_falls_back(model, type(error).__name__)
    assert str(error) in model.last_reuse.fallback


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_stream_that_breaks_off_means_full_prefill(faulty, after):
    model, cache = faulty
    cache.raises["stream"], cache.fail_after = TruncatedStreamError("cut off"), after
    assert_falls_back(model, "TruncatedStreamError")


def damaged(chunk):
    payload = bytearray(memoryview(chunk.payload).cast("B"))
    payload[len(payload) // 2] ^= 1
    return ChunkKV(chunk.chunk_id, bytes(payload), chunk.checksum)


@pytest.mark.parametrize("number", [0, 2])
def test_one_flipped_bit_means_full_prefill(faulty, number):
    model, cache = faulty
    seen = []
    cache.on_fetch = lambda chunk: damaged(chunk) if seen.append(1) or len(seen) == number + 1 else chunk
    assert_falls_back(model, "ChecksumError")


def resized(chunk, size):
    payload = bytes(memoryview(chunk.payload).cast("B"))
    payload = (payload * 3)[: int(len(payload) * size)]
    return ChunkKV(chunk.chunk_id, payload, checksum(payload))


@pytest.mark.parametrize("size", [0.0, 0.5, 2.0], ids=["empty", "half precision", "double precision"])
def test_a_payload_of_another_size_means_full_prefill(faulty, size):
    model, cache = faulty
    cache.on_fetch = lambda chunk: resized(chunk, size)
    assert_falls_back(model, "TensorError")


def test_after_the_fault_reuse_comes_back(faulty):
    model, cache = faulty
    cache.raises["match"] = CacheUnavailableError("gone")
    assert_falls_back(model, "CacheUnavailableError")
    cache.raises.clear()
    settle(model)
    model.generate(IDS, **ARGUMENTS)
    assert model.last_reuse.fallback is None
    assert reused(model, Tier.PREFIX) == IDS.shape[1] - 1  # stored by the request that fell back


def test_chunks_that_are_gone_meanwhile_are_computed(faulty):
    model, cache = faulty
    seen = []
    cache.on_fetch = lambda chunk: None if seen.append(chunk) or len(seen) == 3 else chunk
    model.generate(IDS, **ARGUMENTS)
    report = model.last_reuse
    assert report.fallback is None
    assert "evicted between match and fetch" in report.declined
    assert 0 < report.reused_tokens < IDS.shape[1] - 20


@pytest.mark.parametrize("arch", ["bloom", "gpt2"])
def test_a_gap_left_by_a_lost_chunk_ends_reuse_of_models_that_passed_no_gate(arch):
    cache = FaultyCache(new_cache())
    with boosted(arch, cache=cache) as model:
        warm(model, IDS)
        seen = []
        cache.on_fetch = lambda chunk: None if seen.append(chunk) or len(seen) == 3 else chunk
        assert torch.equal(model.generate(IDS, **ARGUMENTS), plain(model, IDS, **ARGUMENTS))
        computed = [s for s in model.last_reuse.spans if s.tier is Tier.COMPUTED]
        assert len(computed) == 1
        assert model.last_reuse.reused_tokens > 10


def test_when_all_chunks_are_gone_everything_is_computed(faulty):
    model, cache = faulty
    cache.on_fetch = lambda chunk: None
    assert torch.equal(model.generate(IDS, **ARGUMENTS), plain(model, IDS, **ARGUMENTS))
    assert model.last_reuse.reused_tokens == 0
    assert model.last_reuse.fallback is None


@pytest.mark.parametrize("kind", ["twice", "unasked", "backwards"])
def test_chunks_that_come_otherwise_than_asked_do_no_harm(faulty, kind):
    model, cache = faulty
    expected = model.generate(IDS, **ARGUMENTS)
    settle(model)
    cache.inner.drop(model.kvboost_engine.preparer.namespace.key)
    cache.inner.open(model.kvboost_engine.preparer.namespace)
    warm(model, WARM)
    inner = cache.inner.fetch

    def fetch(namespace, chunk_ids):
        chunks = list(inner(namespace, chunk_ids))
        if kind == "twice":
            return iter(chunks + chunks)
        if kind == "backwards":
            return iter(chunks[::-1])
        return iter([ChunkKV(7, b"x", 0), *chunks])

    cache.inner.fetch = fetch
    assert torch.equal(model.generate(IDS, **ARGUMENTS), expected)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_put_that_fails_costs_the_chunks_and_warns_at_the_next_flush(error):
    cache = FaultyCache(new_cache())
    with boosted(cache=cache) as model:
        cache.raises["put"] = error
        expected = plain(model, IDS, **ARGUMENTS)
        assert torch.equal(model.generate(IDS, **ARGUMENTS), expected)
        with pytest.warns(FallbackWarning, match="not stored"):
            model.generate(IDS, **ARGUMENTS)
        assert model.last_reuse.reused_tokens == 0
        with pytest.warns(FallbackWarning, match="not stored"):
            settle(model)
        assert model.kvboost_engine.counters.snapshot()["put_failures"] == 2
        cache.raises.clear()
        warm(model, IDS)
        model.generate(IDS, **ARGUMENTS)
        assert reused(model, Tier.PREFIX) == IDS.shape[1] - 1


def test_errors_of_the_caller_are_raised(faulty):
    model, cache = faulty
    cache.raises["match"] = InputError("threshold is wrong")
    with pytest.raises(InputError, match="threshold is wrong"):
        model.generate(IDS, **ARGUMENTS)
    cache.raises.clear()
    model.generate(IDS, **ARGUMENTS)


def test_errors_of_the_segmenter_about_the_prompt_are_raised():
    class Refusing:
        def segment(self, token_ids):
            raise PromptError("no such prompt")

    with boosted(segmenter_=Refusing()) as model, pytest.raises(PromptError, match="no such prompt"):
        model.generate(IDS, **ARGUMENTS)


def test_one_row_that_falls_back_does_not_take_the_others_along(faulty):
    model, cache = faulty
    ids = torch.cat([IDS, WARM])
    calls = []
    inner = cache.inner.match

    def match(query):
        calls.append(query)
        if len(calls) == 1:
            raise CacheUnavailableError("gone")
        return inner(query)

    cache.inner.match = match
    with pytest.warns(FallbackWarning):
        result = model.generate(ids, **ARGUMENTS)
    first, second = model.last_reuse.rows
    assert first.fallback is not None
    assert first.reused_tokens == 0
    assert second.reused_tokens == WARM.shape[1] - 1
    assert model.last_reuse.fallback == first.fallback
    assert torch.equal(result, plain(model, ids, **ARGUMENTS))
    assert model.kvboost_engine.counters.snapshot()["fallbacks"] == 1


def test_a_warm_request_gives_no_warning(faulty):
    model, _ = faulty
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(IDS, **ARGUMENTS)


def test_wrong_segments_are_noticed():
    class Gappy:
        def segment(self, token_ids):
            found = segmenter().segment(token_ids)
            return replace(found, chunks=found.chunks[1:])

    with boosted(segmenter_=Gappy()) as model, pytest.raises(InputError, match="cover the prompt"):
        model.generate(IDS, **ARGUMENTS)


def test_a_dropped_namespace_is_opened_again():
    cache = new_cache()
    with boosted(cache=cache) as model:
        warm(model, IDS)
        cache.drop(model.kvboost_engine.preparer.namespace.key)
        with pytest.warns(FallbackWarning, match="unknown"):
            assert torch.equal(model.generate(IDS, **ARGUMENTS), plain(model, IDS, **ARGUMENTS))
        settle(model)
        model.generate(IDS, **ARGUMENTS)
        assert reused(model, Tier.PREFIX) == IDS.shape[1] - 1


def test_a_damaged_chunk_costs_one_request_and_is_stored_anew(faulty):
    model, cache = faulty
    damaged = set()

    def damage(chunk: ChunkKV) -> ChunkKV:
        damaged.add(next(iter(damaged), chunk.chunk_id))
        return replace(chunk, checksum=chunk.checksum ^ 1) if chunk.chunk_id in damaged else chunk

    cache.on_fetch = damage
    assert_falls_back(model, "ChecksumError")
    settle(model)
    model.generate(IDS, **ARGUMENTS)
    assert model.last_reuse.fallback is None
    assert model.last_reuse.reused_tokens == IDS.shape[1] - 1
