"""What a request with approximate reuse stores: nothing approximate as exact, nothing twice."""

import pytest
import torch

from kvboost.policy import ReusePolicy
from kvboost.types import Tier
from tests.boosting import (
    boosted,
    document,
    new_cache,
    plain,
    prompt,
    reused,
    settle,
    stored_donors,
    warm,
)
from tests.faulty_cache import FaultyCache

A, B, C, D = (document(i) for i in (1, 2, 3, 4))
ROTATE_ONLY = ReusePolicy(repair="none")
ARGUMENTS = {"do_sample": False, "max_new_tokens": 6}


def test_chunks_computed_over_approximate_ones_are_never_prefix_donors():
    cache = FaultyCache(new_cache())
    with boosted(cache=cache, policy=ROTATE_ONLY) as model:
        warm(model, prompt(A, B))
        cache.puts.clear()
        ids = prompt(B, A, D)
        model.generate(ids, **ARGUMENTS)
        settle(model)
        first = min(s.span.start for s in model.last_reuse.spans if s.tier in (Tier.EXACT, Tier.SIMILAR))
        offered = [chunk for put in cache.puts for chunk in put.chunks]
        assert any(not chunk.exact for chunk in offered)
        assert all(chunk.exact == (chunk.span.end <= first) for chunk in offered)
        # The same prompt again finds nothing lossless behind what was approximate.
        expected = plain(model, ids, **ARGUMENTS)
        model.generate(ids, policy=ReusePolicy(tiers=("prefix",)), **ARGUMENTS)
        assert reused(model, Tier.PREFIX) <= first
        assert torch.equal(model.generate(ids, policy=ReusePolicy(tiers=("prefix",)), **ARGUMENTS), expected)


@pytest.mark.parametrize("repair", ["none", "query"])
def test_reused_chunks_are_not_stored_again_under_the_new_history(repair):
    cache = FaultyCache(new_cache())
    with boosted(cache=cache, policy=ReusePolicy(repair=repair, recompute_ratio=0.6)) as model:
        warm(model, prompt(A, B, C))
        cache.puts.clear()
        model.generate(prompt(C, B, A), **ARGUMENTS)
        settle(model)
        kept = [s.span for s in model.last_reuse.spans if s.tier in (Tier.EXACT, Tier.SIMILAR)]
        assert kept
        offered = [chunk.span for put in cache.puts for chunk in put.chunks]
        assert not any(o.start < k.end and k.start < o.end for o in offered for k in kept)


def test_a_document_met_in_many_orders_is_stored_a_bounded_number_of_times():
    cache = new_cache(max_variants=2)
    documents = [A, B, C]
    orders = [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0)]
    with boosted(cache=cache, policy=ROTATE_ONLY) as model:
        sizes = []
        for order in orders * 2:
            warm(model, prompt(*(documents[i] for i in order)))
            sizes.append(cache.stats().namespaces[0].chunks)
        contents = [donor.token_ids for donor in stored_donors(cache, model)]
        assert max(contents.count(content) for content in contents) <= 2
        assert sizes[-1] <= sizes[len(orders) - 1] + 2


def test_repeated_moves_start_from_the_stored_keys():
    """Were moved keys stored and moved again, their layer 0 would drift; they are only ever read."""
    cache = new_cache()
    with boosted(cache=cache, policy=ROTATE_ONLY) as model:
        warm(model, prompt(A, B, C))
        key = model.kvboost_engine.preparer.namespace.key
        ids = [donor.chunk_id for donor in stored_donors(cache, model)]
        before = {kv.chunk_id: bytes(kv.payload) for kv in cache.fetch(key, ids)}
        for order in ((B, C, A), (C, A, B), (A, C, B)):
            warm(model, prompt(*order))
        after = {kv.chunk_id: bytes(kv.payload) for kv in cache.fetch(key, list(before))}
        assert after == before


@pytest.mark.parametrize("rows", [1, 2])
def test_a_cache_that_the_caller_gets_may_be_changed_while_its_chunks_are_still_to_be_put(rows):
    ids = prompt(A, B).repeat(rows, 1)
    stored = []
    for spoil in (False, True):
        cache = new_cache()
        with boosted(cache=cache) as model:
            engine = settle(model)
            with engine.writer.held():
                result = model.generate(ids, **ARGUMENTS, return_dict_in_generate=True)
                if spoil:
                    for layer in result.past_key_values.layers:
                        layer.keys.zero_()
                        layer.values.zero_()
            settle(model)
            key = engine.preparer.namespace.key
            chunk_ids = [donor.chunk_id for donor in stored_donors(cache, model)]
            stored.append(sorted(bytes(kv.payload) for kv in cache.fetch(key, chunk_ids)))
    assert stored[0]
    assert stored[0] == stored[1]
