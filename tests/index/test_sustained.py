"""Documents met in a hundred orders: the hits stay, and so does the size."""

from __future__ import annotations

import random

import pytest

from kvboost.index import LocalCache
from kvboost.types import NewChunk, PutRequest, Tier
from tests.contracts.chunks import LAYOUT, Tokens, ask, held_bytes, join, namespace, payload_of, spans, text_of, words

NS = namespace()


def serve(cache: LocalCache, chunks: list[Tokens], offer_everything: bool) -> float:
    """Match, fetch and put back, as a runtime does; return the share of tokens hit.

    A good client offers only what was not matched, and as exact only what stands behind nothing but prefix hits.
    """
    matches = cache.match(ask(NS.key, chunks)).matches
    for kv in cache.fetch(NS.key, [m.donor.chunk_id for m in matches]):
        kv.verified()
    tier = {t: m.tier for m in matches for t in range(m.target.start, m.target.end)}
    new, exact = [], True
    for span, tokens in zip(spans(chunks), chunks, strict=True):
        own = range(span.start, span.end)
        exact = exact and all(tier.get(t, Tier.PREFIX) == Tier.PREFIX for t in own)
        if offer_everything or any(t not in tier for t in own):
            new.append(NewChunk(span, text_of(tokens), exact or offer_everything, payload_of(tokens, span.start)))
    cache.put(PutRequest(NS.key, join(chunks), tuple(new)))
    return len(tier) / len(join(chunks))


@pytest.mark.parametrize("offer_everything", [False, True])
def test_reordering_does_not_wear_the_cache_out(offer_everything: bool) -> None:
    documents = [[words(f"{d:x}{c}", 20) for c in range(10)] for d in range(14)]
    document_bytes = sum(len(join(d)) for d in documents) * LAYOUT.token_bytes
    cache = LocalCache(2 * held_bytes(*(len(chunk) for document in documents for chunk in document)))
    cache.open(NS)
    rng = random.Random(7)
    system = words("sys", 24)
    shares, sizes = [], []
    for number in range(120):
        chosen = rng.sample(documents, rng.randint(4, 14))
        question = tuple(10_000_000 + 32 * number + i for i in range(18))
        chunks = [system, *(c for d in chosen for c in d), question]
        shares.append(serve(cache, chunks, offer_everything))
        sizes.append(cache.stats().stored_bytes)
    warm = shares[20:]
    first, last = sum(warm[:20]) / 20, sum(warm[-20:]) / 20
    assert first > 0.9
    assert last >= 0.95 * first
    assert max(sizes) <= 2 * document_bytes
    if not offer_everything:
        # Documents once, the system prompt, and questions: nothing was stored once an order.
        assert cache.stats().namespaces[0].chunks <= 140 + 1 + 120
