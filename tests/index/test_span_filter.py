"""The filter before the embedder: never wrong about a shared run, seldom about the rest."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.index import LocalCache
from kvboost.index.nominate import first_batch
from kvboost.index.span_filter import GRAM_TOKENS, SpanFilter, gram_hashes
from kvboost.types import MatchQuery, Tier
from tests.contracts.chunks import Tokens, ask, namespace, offer, words
from tests.fakes import NgramEmbedder

KEY = namespace().key
# Two tokens only, so that long runs are shared by chance.
_chunk = st.lists(st.integers(0, 1), min_size=1, max_size=24).map(tuple)


def longest_shared(a: Tokens, b: Tokens) -> int:
    return max(
        (n for i in range(len(a)) for j in range(len(b)) for n in range(min(len(a) - i, len(b) - j) + 1)
         if a[i : i + n] == b[j : j + n]), default=0,
    )  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.tuples(_chunk, st.booleans()), max_size=6), _chunk)
def test_no_shared_run_is_missed(cached: list[tuple[Tokens, bool]], wanted: Tokens) -> None:
    spans = SpanFilter()
    for chunk, _ in cached:
        spans.add(chunk)
    for chunk, evicted in cached:
        if evicted:
            spans.remove(chunk)
    found = spans.shared(gram_hashes(wanted))
    longest = max((longest_shared(chunk, wanted) for chunk, evicted in cached if not evicted), default=0)
    assert found.longest >= longest or longest < GRAM_TOKENS
    known = {chunk[i : i + GRAM_TOKENS] for chunk, gone in cached if not gone for i in range(len(chunk) - 7)}
    asked = [wanted[i : i + GRAM_TOKENS] for i in range(len(wanted) - 7)]
    assert found.share == (sum(gram in known for gram in asked) / len(asked) if asked else 0.0)


@given(st.lists(_chunk, max_size=6))
def test_what_is_removed_leaves_nothing(chunks: list[Tokens]) -> None:
    spans = SpanFilter()
    for chunk in chunks:
        spans.add(chunk)
    for chunk in reversed(chunks):
        spans.remove(chunk)
    assert len(spans) == 0


def test_unseen_tokens_share_nothing() -> None:
    spans = SpanFilter()
    rng = random.Random(1)
    for _ in range(200):
        spans.add([rng.randrange(50_000) for _ in range(40)])
    assert spans.shared(gram_hashes([rng.randrange(50_000) for _ in range(4000)])).longest == 0


@pytest.fixture
def embedder() -> NgramEmbedder:
    return NgramEmbedder()


@pytest.fixture
def cache(embedder: NgramEmbedder) -> LocalCache:
    cache = LocalCache(1 << 20, embedder)
    cache.open(namespace())
    return cache


def asking(chunks: list[Tokens], least: int | None, threshold: float = 0.6) -> MatchQuery:
    query = ask(KEY, chunks, threshold=threshold)
    return MatchQuery(KEY, query.token_ids, query.chunks, threshold, min_shared_tokens=least)


A, B, C = words("a", 32), words("b", 32), words("c", 32)


def edited(chunk: Tokens, *at: int) -> Tokens:
    return tuple(5 if i in at else token for i, token in enumerate(chunk))


def test_only_chunks_with_a_long_enough_shared_run_are_embedded(cache: LocalCache, embedder: NgramEmbedder) -> None:
    cache.put(offer(KEY, [A, B]))
    cache.flush()
    prompt = [C, edited(B, 10), edited(A, 7, 15, 23, 31)]
    for least, embedded in ((None, 3), (1, 3), (8, 1), (21, 1), (22, 0)):
        before = len(embedder.texts)
        result = cache.match(asking(prompt, least))
        assert result.embedded_chunks == embedded
        assert result.spared_chunks == 3 - embedded
        assert len(embedder.texts) - before <= embedded
        assert any(match.tier == Tier.SIMILAR for match in result.matches) == (embedded > 0)


def test_an_evicted_chunk_lets_nothing_pass(cache: LocalCache) -> None:
    cache.put(offer(KEY, [A, B]))
    cache.flush()
    (match,) = cache.match(asking([C, edited(B, 10)], 8)).matches
    cache.evict(KEY, [match.donor.chunk_id])
    assert cache.match(asking([C, edited(B, 10)], 8)).spared_chunks == 2


def test_a_run_that_ends_with_what_the_prefix_tier_took_is_not_enough(cache: LocalCache) -> None:
    cache.put(offer(KEY, [A, B]))
    cache.flush()
    result = cache.match(asking([(*A[:24], *C[:8])], 8))
    assert [match.tier for match in result.matches] == [Tier.PREFIX]
    assert result.embedded_chunks == 0
    # One that goes on behind it is: the donor's text was shortened in the middle.
    shortened = (*A[:12], *A[16:])
    result = cache.match(asking([shortened], 8))
    assert [match.tier for match in result.matches] == [Tier.PREFIX, Tier.SIMILAR]


def test_boilerplate_without_a_donor_costs_one_batch(cache: LocalCache) -> None:
    cache.put(offer(KEY, [A, B]))
    cache.flush()
    boilerplate = [(*words(f"x{i}", 24), *A[8:17]) for i in range(80)]
    result = cache.match(asking(boilerplate, 8, threshold=0.9))
    assert (result.embedded_chunks, result.matches) == (first_batch(80), ())
    assert first_batch(80) == 10
    # The likely ones go first, wherever they stand, and while they are found the search goes on.
    result = cache.match(asking([*boilerplate, edited(B, 10)], 8, threshold=0.7))
    assert [match.donor.token_ids for match in result.matches] == [B]
    assert first_batch(81) < result.embedded_chunks < 81
    assert cache.match(asking(boilerplate, None, threshold=0.9)).embedded_chunks == len(boilerplate)


def test_a_text_embedded_for_a_look_up_is_not_embedded_again(cache: LocalCache, embedder: NgramEmbedder) -> None:
    cache.put(offer(KEY, [A, B]))
    cache.flush()
    prompt = [C, edited(B, 10)]
    first = cache.match(asking(prompt, 8))
    before = list(embedder.texts)
    assert cache.match(asking(prompt, 8)) == first
    cache.put(offer(KEY, prompt, only=[1]))
    cache.flush()
    assert embedder.texts == before
    assert cache.stats().namespaces[0].vectors == 3
