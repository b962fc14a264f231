"""The payload store: budget, queues, and who leaves first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvboost.errors import QuotaError
from kvboost.index.store import PayloadStore
from kvboost.types import ChunkKV


def put(store: PayloadStore, chunk_id: int, nbytes: int = 10, name: bytes | None = None) -> list[int]:
    return store.put(ChunkKV(chunk_id, bytes(nbytes), 0), nbytes, ("n", name or str(chunk_id).encode()))


class StoreMachine(RuleBasedStateMachine):
    """Whatever is done: the budget holds, and what was not evicted is there."""

    def __init__(self) -> None:
        super().__init__()
        self.store = PayloadStore(100)
        self.stored: dict[int, int] = {}
        self.next_id = 1

    @rule(nbytes=st.integers(1, 120), name=st.integers(0, 8))
    def put(self, nbytes: int, name: int) -> None:
        before = dict(self.stored)
        try:
            evicted = put(self.store, self.next_id, nbytes, bytes([name]))
        except QuotaError:
            assert nbytes > 100
            assert self.stored == before
            return
        for chunk_id in evicted:
            del self.stored[chunk_id]
        self.stored[self.next_id] = nbytes
        self.next_id += 1

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        chunk_id = data.draw(st.integers(0, self.next_id))
        kv = self.store.get(chunk_id)
        assert (kv is not None) == (chunk_id in self.stored)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        chunk_id = data.draw(st.integers(0, self.next_id))
        assert self.store.remove(chunk_id) == (self.stored.pop(chunk_id, None) is not None)

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.stored.clear()

    @invariant()
    def the_budget_holds_and_nothing_is_lost(self) -> None:
        assert self.store.used_bytes == sum(self.stored.values()) <= 100
        assert len(self.store) == len(self.stored)
        assert all(i in self.store for i in self.stored)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_chunks_met_once_leave_before_chunks_met_again() -> None:
    store = PayloadStore(1000)
    for i in range(100):
        put(store, i)
    reused = set(range(0, 100, 2))
    for i in reused:
        store.get(i)
    gone = [e for i in range(100, 150) for e in put(store, i)]
    assert len(gone) == 50
    assert not set(gone) & reused


def test_a_scan_of_new_chunks_does_not_flush_the_reused_ones() -> None:
    store = PayloadStore(1000)
    for i in range(50):
        put(store, i)
        store.get(i)
    for i in range(1000, 3000):
        put(store, i)
    assert sum(i in store for i in range(50)) == 50


def test_content_that_comes_back_soon_is_kept_longer() -> None:
    store = PayloadStore(100)
    for i in range(10):
        put(store, i)
    assert put(store, 10) == [0]
    put(store, 11, name=b"0")
    for i in range(20, 60):
        put(store, i)
    assert 11 in store


def test_chunks_no_longer_read_leave_in_the_end() -> None:
    store = PayloadStore(100)
    for i in range(10):
        put(store, i)
        store.get(i)
    for i in range(10, 60):
        put(store, i)
        store.get(i)
    assert not any(i in store for i in range(10))


def test_a_full_store_of_often_read_chunks_takes_a_large_one_without_recursion() -> None:
    store = PayloadStore(20_000)
    for i in range(20_000):
        put(store, i, 1)
    for _ in range(5):
        for i in range(20_000):
            store.get(i)
    assert len(put(store, 99_999, 20_000)) == 20_000
    assert store.used_bytes == 20_000
    assert len(store) == 1


def test_what_is_larger_than_the_budget_is_refused_and_nothing_leaves() -> None:
    store = PayloadStore(100)
    put(store, 1, 100)
    with pytest.raises(QuotaError, match="max_bytes 100"):
        put(store, 2, 101)
    assert 1 in store
