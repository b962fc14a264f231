"""A namespace's figures, and what its tables take."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvboost.index import LocalCache
from kvboost.index.table import index_bytes
from kvboost.types import KVLayout, NewChunk, PutRequest, Span
from tests.contracts.chunks import LAYOUT, held_bytes, namespace, offer, words

NS, OTHER = namespace(), namespace(tenant="other")


class FiguresMachine(RuleBasedStateMachine):
    """Whatever is put, evicted and dropped: the figures are those of a count, and the budget holds."""

    def __init__(self) -> None:
        super().__init__()
        self.max_bytes = held_bytes(*[16] * 6)
        self.cache = LocalCache(self.max_bytes)
        for each in (NS, OTHER):
            self.cache.open(each)

    @rule(
        names=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=9),
        tokens=st.integers(1, 40),
        exact=st.booleans(),
        other=st.booleans(),
        prefix_only=st.booleans(),
    )
    def put(self, names: list[str], tokens: int, exact: bool, other: bool, prefix_only: bool) -> None:
        key = (OTHER if other else NS).key
        request = offer(key, [words(name, tokens) for name in names], exact)
        self.cache.put(PutRequest(key, request.token_ids, request.chunks, prefix_only))

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        ids = [donor.chunk_id for donor in self.donors(NS.key)]
        if ids:
            assert self.cache.evict(NS.key, [data.draw(st.sampled_from(ids))]) == 1

    @rule()
    def drop(self) -> None:
        count = len(self.donors(OTHER.key))
        assert self.cache.drop(OTHER.key) == count
        self.cache.open(OTHER)

    @invariant()
    def the_figures_are_those_of_a_count(self) -> None:
        stats = self.cache.stats()
        for each in stats.namespaces:
            donors = self.donors(each.namespace)
            tokens = [len(donor.token_ids) for donor in donors]
            assert each.chunks == len(donors)
            assert each.stored_bytes == sum(tokens) * LAYOUT.token_bytes
            assert each.exact_bytes == sum(len(d.token_ids) for d in donors if d.exact) * LAYOUT.token_bytes
            assert each.index_bytes == sum(map(index_bytes, tokens))
        held = stats.stored_bytes + stats.index_bytes
        assert held == self.cache._budget.used_bytes <= self.max_bytes

    def donors(self, key: str) -> list:
        room = self.cache._rooms.get(key)
        if room is None:
            return []
        with room.table() as table:
            return table.donors

    def teardown(self) -> None:
        self.cache.close()


TestFiguresMachine = FiguresMachine.TestCase
TestFiguresMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("tokens", [4, 16, 40, 64])
def test_the_estimate_of_a_chunks_tables_is_what_they_take(tokens: int) -> None:
    layout = KVLayout(1, 1, 1, 1, "float16")
    ns = namespace(layout=layout)
    cache = LocalCache(1 << 30)
    cache.open(ns)
    rng = random.Random(tokens)
    payload = bytes(tokens * layout.token_bytes)
    gc.collect()
    tracemalloc.start()
    for _ in range(40):
        ids = tuple(rng.randrange(50_000) for _ in range(32 * tokens))
        spans = [Span(at, at + tokens) for at in range(0, len(ids), tokens)]
        cache.put(PutRequest(ns.key, ids, tuple(NewChunk(span, "", True, payload) for span in spans)))
    del ids, spans
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stats = cache.stats()
    assert 0.7 < (taken - stats.stored_bytes) / stats.index_bytes < 1.4
