"""Documents published for all tenants, and nothing else of a tenant's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from kvboost.config import CacheConfig, Config
from kvboost.errors import InputError, SupportError
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.published import PublishedCache, check_tenant, merged
from kvboost.sampling import GREEDY
from kvboost.types import Donor, Match, Span, Tier
from tests.boosting import boosted, document, new_cache
from tests.contracts.chunks import ask, namespace, offer, payload_of, shape, words
from tests.runtime_service import Running, runtime_service
from tests.tiny_models import tiny_model

DOCUMENTS = [document(seed, sentences=4) for seed in range(3)]
QUESTION = "\n\n".join([DOCUMENTS[1], DOCUMENTS[0], "What did they all say about it today?"])


@contextmanager
def tenants(*names: str, published: str = "docs", publishes: bool = True) -> Iterator[tuple[LocalCache, list[Running]]]:
    cache = new_cache()
    with ExitStack() as stack:
        running = []
        for name in names:
            config = Config(cache=CacheConfig(tenant=name, published=published), policy=ReusePolicy(worth_it=False))
            running.append(stack.enter_context(runtime_service(cache=cache, config=config, publishes=publishes)))
        yield cache, running


def test_what_one_tenant_publishes_all_read_and_what_it_asks_none() -> None:
    with tenants("a", "b") as (cache, (a, b)):
        private = document(9, sentences=4)
        a.client.answer(f"{private}\n\nAnd?", max_new_tokens=2, wait_for_store=True)
        receipts = a.client.warm(DOCUMENTS, publish=True)
        assert all(receipt.stored_chunks > 1 and receipt.reused_tokens == 0 for receipt in receipts)
        report = b.client.answer(QUESTION, max_new_tokens=4, sampling=GREEDY).report
        assert report.reused_tokens + report.recomputed_tokens > 0.7 * report.prompt_tokens
        assert report.fallback is None
        none = b.client.answer(f"{private}\n\nAnd?", max_new_tokens=2).report
        assert none.reused_tokens < 8  # as far as documents begin alike
        by_tenant = {each.tenant: each for each in cache.stats().namespaces}
        assert set(by_tenant) == {"a", "b", "published:docs"}
        # Publishing again finds everything there; requests have added nothing.
        assert sum(receipt.stored_chunks for receipt in receipts) == by_tenant["published:docs"].chunks


@pytest.mark.filterwarnings("ignore::kvboost.errors.FallbackWarning")
def test_published_documents_that_were_dropped_cost_one_request_its_reuse() -> None:
    with tenants("a") as (cache, (a,)):
        a.client.warm(DOCUMENTS, publish=True)
        key = next(each.namespace for each in cache.stats().namespaces if each.tenant.startswith("published"))
        assert cache.drop(key) > 0
        plain = a.client.answer(QUESTION, max_new_tokens=4, skip_cache=True)
        first = a.client.answer(QUESTION, max_new_tokens=4, sampling=GREEDY, wait_for_store=True)
        assert first.token_ids == plain.token_ids
        assert "UnknownNamespaceError" in str(first.report.fallback)
        again = a.client.answer(QUESTION, max_new_tokens=4, sampling=GREEDY)
        assert again.report.fallback is None
        assert again.report.tokens_by_tier[Tier.PREFIX] > 0.8 * again.report.prompt_tokens


def test_publishing_is_refused_where_it_is_not_allowed_or_has_no_name() -> None:
    with tenants("a", publishes=False) as (_, (a,)), pytest.raises(SupportError, match=r"runtime\.publishes"):
        a.client.warm(DOCUMENTS, publish=True)
    with tenants("a", published="") as (_, (a,)), pytest.raises(SupportError, match=r"cache\.published"):
        a.client.warm(DOCUMENTS, publish=True)


def test_no_tenant_may_pass_for_published_documents() -> None:
    with pytest.raises(InputError, match="must not begin with 'published:'"):
        check_tenant("published:docs")
    with (
        pytest.raises(InputError, match="published:"),
        boosted(model=tiny_model("llama"), config=Config(cache=CacheConfig(tenant="published:docs"))),
    ):
        pass
    cache = PublishedCache(new_cache(), "docs")
    with pytest.raises(InputError, match="published:"):
        cache.open(replace(namespace(), tenant="published:docs"))
    cache.close()


def _match(start: int, end: int, tier: Tier, number: int) -> Match:
    donor = Donor(number, tuple(range(end - start)), 0, b"", b"", True)
    return Match(Span(start, end), donor, Span(0, end - start), tier)


def test_merged_matches_do_not_overlap_and_the_lossless_goes_first() -> None:
    own = [_match(0, 3, Tier.PREFIX, 1), _match(20, 40, Tier.EXACT, 2), _match(50, 70, Tier.SIMILAR, 3)]
    shared = [_match(0, 20, Tier.PREFIX, 4), _match(20, 40, Tier.EXACT, 5), _match(40, 60, Tier.EXACT, 6)]
    assert [match.donor.chunk_id for match in merged(own, shared)] == [4, 2, 6]
    assert merged(own, ()) == tuple(own)
    assert merged((), shared) == tuple(shared)


def test_chunks_are_fetched_and_evicted_where_they_were_found() -> None:
    inner = new_cache()
    cache = PublishedCache(inner, "docs")
    own = namespace()
    cache.open(own)
    shared = cache.published_key(own.key)
    assert shared is not None
    a, b = words("a"), words("b")
    inner.put(offer(shared, [a]))
    cache.put(offer(own.key, [b]))
    found = cache.match(ask(own.key, [b, a])).matches
    assert shape(found) == [("prefix", 0, 16), ("exact", 16, 32)]
    ids = [match.donor.chunk_id for match in found]
    got = [bytes(each.verified()) for each in cache.fetch(own.key, [ids[1], ids[0], ids[1]])]
    assert got == [payload_of(a, 0), payload_of(b, 0), payload_of(a, 0)]
    assert list(cache.fetch(own.key, [12345])) == []
    assert cache.evict(own.key, ids) == 2
    assert cache.match(ask(own.key, [b, a])).matches == ()
    cache.close()
