"""The payload store: its queues, who leaves first, and that a sequence leaves from its tail."""

from __future__ import annotations

from collections.abc import Callable, Container
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvboost.index.store import PayloadStore
from kvboost.types import ChunkKV


def unlinked(chunk_id: int) -> tuple[int, ...]:
    return ()


class Store:
    """A store with a budget of its own, as a cache with one namespace keeps it."""

    def __init__(self, max_bytes: int, continued_by: Callable[[int], list[int] | tuple[int, ...]] = unlinked) -> None:
        self.max_bytes = max_bytes
        self.inner = PayloadStore(continued_by)

    def put(self, chunk_id: int, nbytes: int = 10, name: bytes | None = None, spare: Container[int] = ()) -> list[int]:
        """Make room and store; return who left."""
        gone = []
        while self.inner.used_bytes + nbytes > self.max_bytes:
            kv = self.inner.evict(spare)
            assert kv is not None
            gone.append(kv.chunk_id)
        self.inner.put(ChunkKV(chunk_id, bytes(nbytes), 0), nbytes, name or str(chunk_id).encode())
        return gone

    def read(self, *chunk_ids: int) -> None:
        for chunk_id in chunk_ids:
            self.inner.get(chunk_id)

    def has(self, chunk_id: int) -> bool:
        return chunk_id in self.inner


class StoreMachine(RuleBasedStateMachine):
    """Whatever is done: the figures are true, and what was not evicted is there."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[int, list[int]] = {}
        self.store = PayloadStore(lambda chunk_id: self.links.get(chunk_id, []))
        self.stored: dict[int, int] = {}
        self.next_id = 1

    @rule(nbytes=st.integers(1, 120), name=st.integers(0, 8), data=st.data())
    def put(self, nbytes: int, name: int, data: st.DataObject) -> None:
        parent = data.draw(st.integers(0, self.next_id - 1))
        self.links.setdefault(parent, []).append(self.next_id)
        self.store.put(ChunkKV(self.next_id, b"", 0), nbytes, bytes([name]))
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
        assert (self.store.remove(chunk_id) is not None) == (self.stored.pop(chunk_id, None) is not None)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        spare = data.draw(st.sets(st.integers(1, self.next_id)))
        kv = self.store.evict(spare)
        if kv is None:
            assert set(self.stored) <= spare
        else:
            assert kv.chunk_id not in spare
            del self.stored[kv.chunk_id]

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.stored.clear()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.store.used_bytes == sum(self.stored.values())
        assert len(self.store) == len(self.stored)
        assert all(i in self.store for i in self.stored)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_chunks_met_once_leave_before_chunks_met_again() -> None:
    store = Store(1000)
    for i in range(100):
        store.put(i)
    reused = set(range(0, 100, 2))
    store.read(*reused)
    gone = [e for i in range(100, 150) for e in store.put(i)]
    assert len(gone) == 50
    assert not set(gone) & reused


def test_a_scan_of_new_chunks_does_not_flush_the_reused_ones() -> None:
    store = Store(1000)
    for i in range(50):
        store.put(i)
        store.read(i)
    for i in range(1000, 3000):
        store.put(i)
    assert sum(store.has(i) for i in range(50)) == 50


def test_content_that_comes_back_soon_is_kept_longer() -> None:
    store = Store(100)
    for i in range(10):
        store.put(i)
    assert store.put(10) == [0]
    store.put(11, name=b"0")
    for i in range(20, 60):
        store.put(i)
    assert store.has(11)


def test_chunks_no_longer_read_leave_in_the_end() -> None:
    store = Store(100)
    for i in range(10):
        store.put(i)
        store.read(i)
    for i in range(10, 60):
        store.put(i)
        store.read(i)
    assert not any(store.has(i) for i in range(10))


def test_a_full_store_of_often_read_chunks_takes_a_large_one_without_recursion() -> None:
    store = Store(20_000)
    for i in range(20_000):
        store.put(i, 1)
    for _ in range(5):
        store.read(*range(20_000))
    assert len(store.put(99_999, 20_000)) == 20_000
    assert store.inner.used_bytes == 20_000
    assert len(store.inner) == 1


# Sequences


def chain(*chunk_ids: int) -> Callable[[int], list[int]]:
    """Return links that make one sequence of ``chunk_ids``."""
    after = dict(pairwise(chunk_ids))
    return lambda chunk_id: [after[chunk_id]] if chunk_id in after else []


def test_a_sequence_leaves_from_its_tail() -> None:
    store = Store(100, chain(*range(10)))
    for i in range(10):
        store.put(i)
    assert [e for i in range(20, 30) for e in store.put(i)] == list(range(9, -1, -1))


def test_the_turns_of_a_chat_leave_last_turn_first_although_they_came_first_turn_first() -> None:
    store = Store(100, chain(*range(6)))
    for i in range(6):
        store.put(i)
    store.read(0, 1, 2)  # a chat's second turn reads the first
    for i in range(20, 24):
        store.put(i)
    gone = [e for i in range(30, 40) for e in store.put(i)]
    assert [e for e in gone if e < 6] == [5, 4, 3]


def test_a_tail_that_is_read_for_itself_stays_when_its_history_goes() -> None:
    """Such as a document behind a question that nobody asks again."""
    store = Store(100, chain(0, 1))
    for i in range(10):
        store.put(i)
    store.read(1)
    assert store.put(10) == [0]
    assert store.has(1)


def test_what_is_being_put_pushes_out_others_before_its_own_head() -> None:
    """A chat larger than the small queue, into a store whose main queue is full."""
    store = Store(1000)
    for i in range(100):
        store.put(i)
        store.read(i)
    for i in range(100, 130):
        store.put(i)  # so that those read are in the main queue
    own: set[int] = set()
    for i in range(1000, 1060):
        store.put(i, spare=own)
        own.add(i)
    assert all(store.has(i) for i in own)


def test_a_store_of_spared_chunks_alone_gives_none() -> None:
    store = Store(100)
    for i in range(10):
        store.put(i)
    store.read(0, 1, 2)
    assert store.inner.evict(set(range(10))) is None
    assert len(store.inner) == 10


def test_evicting_a_long_sequence_takes_steps_in_proportion_to_its_length() -> None:
    steps = 0
    after = chain(*range(5000))

    def counted(chunk_id: int) -> list[int]:
        nonlocal steps
        steps += 1
        return after(chunk_id)

    store = PayloadStore(counted)
    for i in range(5000):
        store.put(ChunkKV(i, b"", 0), 1, str(i).encode())
    for expected in range(4999, -1, -1):
        kv = store.evict()
        assert kv is not None
        assert kv.chunk_id == expected
    assert steps <= 3 * 5000
