"""What the cache in this process does beyond the contract: background embedding, settings, privacy."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from kvboost.background import NICENESS
from kvboost.errors import InputError, NonFiniteError, UnknownNamespaceError
from kvboost.index import LocalCache
from kvboost.index.table import MANY_VARIANTS, NamespaceTable
from kvboost.index.worker import EmbeddingWorker
from kvboost.protocols import Vectors
from kvboost.types import NewChunk, PutReceipt, PutRequest, Span, Tier
from tests.contracts.chunks import ask, held_bytes, namespace, offer, payload_of, shape, text_of, words
from tests.fakes import NgramEmbedder

NS = namespace(tenant="acme")
KEY = NS.key
A, B, C = words("a"), words("b"), words("c")
EDITED = (*B[:7], 5, *B[8:])


class Gate(NgramEmbedder):
    """An embedder that waits for permission, and fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.go = threading.Event()
        self.fault: Exception | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.entered.set()
        assert self.go.wait(20)
        if self.fault is not None:
            raise self.fault
        return super().embed(texts)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def cache(gate: Gate) -> Iterator[LocalCache]:
    cache = LocalCache(1 << 20, gate, embed_batch=4, max_waiting_embeddings=6)
    cache.open(NS)
    yield cache
    gate.go.set()
    cache.close()


def vectors(cache: LocalCache) -> int:
    return cache.stats().namespaces[0].vectors


def test_a_put_does_not_wait_for_the_embedder(cache: LocalCache, gate: Gate) -> None:
    assert cache.put(offer(KEY, [A, B])) == PutReceipt(stored=2)
    assert shape(cache.match(ask(KEY, [A, B])).matches) == [("prefix", 0, 16), ("prefix", 16, 32)]
    assert not cache.flush(timeout_s=0.01)
    gate.go.set()
    assert cache.flush(20)
    assert vectors(cache) == 2
    assert cache.embedding.embedded == 2


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_embedding_in_the_background_gives_way_to_requests(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(gate, "embed", lambda texts: (seen.append(nice()), NgramEmbedder.embed(gate, texts))[1])
    with closing(LocalCache(1 << 20, gate)) as cache:
        cache.open(NS)
        cache.put(offer(KEY, [A, B]))
        assert cache.flush(20)
        cache.match(ask(KEY, [EDITED], threshold=0.5))
    assert set(seen[:-1]) == {nice() + NICENESS}
    assert seen[-1] == nice()


def nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_chunk_evicted_while_it_is_being_embedded_leaves_no_vector(cache: LocalCache, gate: Gate) -> None:
    cache.put(offer(KEY, [A, B]))
    assert gate.entered.wait(20)
    (first, _) = cache.match(ask(KEY, [A, B])).matches
    cache.evict(KEY, [first.donor.chunk_id])
    gate.go.set()
    cache.flush()
    assert vectors(cache) == 1


def test_a_namespace_dropped_while_it_is_being_embedded_comes_back_empty(cache: LocalCache, gate: Gate) -> None:
    cache.put(offer(KEY, [A, B]))
    assert gate.entered.wait(20)
    cache.drop(KEY)
    cache.open(NS)
    gate.go.set()
    cache.flush()
    assert vectors(cache) == 0
    assert cache.stats().stored_bytes == 0


def test_one_content_is_embedded_once_and_its_vector_goes_with_its_last_chunk(cache: LocalCache, gate: Gate) -> None:
    gate.go.set()
    cache.put(offer(KEY, [A, B]))
    cache.put(offer(KEY, [C, B]))
    cache.flush()
    assert sorted(gate.texts) == sorted(map(text_of, (A, B, C)))
    for left in (1, 0):
        (match, *_) = (m for m in cache.match(ask(KEY, [words("z"), B])).matches)
        cache.evict(KEY, [match.donor.chunk_id])
        found = cache.match(ask(KEY, [words("z"), EDITED], threshold=0.7)).matches
        assert len(found) == left


def test_a_failing_embedder_is_counted_and_loses_no_chunk(
    cache: LocalCache, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.fault = RuntimeError(f"cannot read {text_of(A)}")
    gate.go.set()
    with caplog.at_level(logging.DEBUG, logger="kvboost"):
        cache.put(offer(KEY, [A, B]))
        cache.flush()
    assert cache.embedding.failed == 2
    assert "RuntimeError" in caplog.text
    assert text_of(A)[:20] not in caplog.text
    assert len(cache.match(ask(KEY, [A, B])).matches) == 2
    gate.fault = None
    cache.put(offer(KEY, [A, C]))
    cache.flush()
    assert vectors(cache) == 1


@pytest.mark.parametrize("rows", [np.zeros((1, 256)), np.full((1, 256), np.nan), np.ones((1, 3)), np.ones((2, 256))])
def test_unusable_vectors_are_refused_and_lose_no_chunk(rows: np.ndarray, caplog: pytest.LogCaptureFixture) -> None:
    embedder = NgramEmbedder()
    embedder.embed = lambda texts: rows.astype(np.float32)  # type: ignore[method-assign]
    cache = LocalCache(1 << 20, embedder)
    cache.open(NS)
    cache.put(offer(KEY, [A]))
    cache.flush()
    assert (cache.embedding.failed, vectors(cache)) == (1, 0)
    assert len(cache.match(ask(KEY, [A], threshold=0.5)).matches) == 1
    assert "TensorError" in caplog.text
    cache.close()


def test_a_look_up_whose_embedding_fails_still_answers_by_hash(
    cache: LocalCache, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.go.set()
    cache.put(offer(KEY, [A, B]))
    cache.flush()
    gate.fault = RuntimeError("no")
    result = cache.match(ask(KEY, [A, EDITED], threshold=0.5))
    assert shape(result.matches) == [("prefix", 0, 16), ("prefix", 16, 23)]
    assert result.embedded_chunks == 0
    assert cache.failed_lookups == 1
    assert "RuntimeError" in caplog.text


def test_the_queue_of_the_embedder_is_bounded(cache: LocalCache, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    cache.put(offer(KEY, [words("first")]))
    assert gate.entered.wait(20)
    receipt = cache.put(offer(KEY, [words(f"n{i}") for i in range(10)]))
    assert receipt.stored == 10
    assert cache.embedding.skipped == 4
    assert "queue is full" in caplog.text
    gate.go.set()
    cache.flush()
    assert cache.embedding.embedded == vectors(cache) == 7


def test_text_that_waits_is_bounded_in_bytes() -> None:
    seen: list[str] = []
    worker: EmbeddingWorker[int] = EmbeddingWorker(lambda keys, texts: seen.extend(texts), 4, 1000, 5000)
    with worker.paused():
        for number in range(10):
            worker.submit(number, f"{number}" * 1000)
        assert (worker.report().waiting, worker.report().skipped) == (4, 6)
    assert worker.flush(20)
    worker.submit(11, "b" * 4000)
    assert worker.flush(20)
    assert [text[0] for text in seen] == ["0", "1", "2", "3", "b"]
    worker.close()


def test_chunks_are_embedded_under_look_ups_that_never_pause() -> None:
    """Each look-up begins before the one before it ends, so there is always one in progress."""
    embedded = threading.Event()
    worker: EmbeddingWorker[int] = EmbeddingWorker(lambda keys, texts: embedded.set(), 4, 100)
    current = worker.paused()
    current.__enter__()
    worker.submit(1, "text")
    for _ in range(20_000):
        following = worker.paused()
        following.__enter__()
        current.__exit__(None, None, None)
        current = following
        if embedded.wait(0.001):
            break
    assert embedded.is_set()
    current.__exit__(None, None, None)
    worker.close()


def test_a_look_up_goes_before_waiting_chunks(cache: LocalCache, gate: Gate) -> None:
    gate.go.set()
    cache.put(offer(KEY, [A]))
    cache.flush()
    gate.go.clear()
    gate.entered.clear()
    with ThreadPoolExecutor(1) as pool:
        look_up = pool.submit(cache.match, ask(KEY, [words("z"), EDITED], threshold=0.5))
        assert gate.entered.wait(20)
        cache.put(offer(KEY, [C, B]))
        assert not cache.flush(timeout_s=0.05)
        gate.go.set()
        assert look_up.result().embedded_chunks == 2
    cache.flush()
    assert gate.texts == [text_of(t) for t in (A, words("z"), EDITED, C, B)]


def test_closing_waits_for_the_batch_in_progress_and_forgets_the_rest(cache: LocalCache, gate: Gate) -> None:
    cache.put(offer(KEY, [words("first")]))
    assert gate.entered.wait(20)
    cache.put(offer(KEY, [A, B]))
    assert cache.embedding.waiting == 3
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(cache.close)
        for _ in range(1000):
            if cache.embedding.waiting == 1:
                break
            time.sleep(0.01)
        assert not closing.done()
        gate.go.set()
        closing.result()
    assert gate.texts == [text_of(words("first"))]
    assert cache.flush(0)


def test_the_tenant_is_not_part_of_the_embedded_text(cache: LocalCache, gate: Gate) -> None:
    gate.go.set()
    cache.put(offer(KEY, [A]))
    cache.flush()
    cache.match(ask(KEY, [B], threshold=0.5))
    assert gate.texts == [text_of(A), text_of(B)]


def test_no_prompt_text_is_kept_or_logged(cache: LocalCache, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    gate.go.set()
    marker = "the account number is"
    with caplog.at_level(logging.DEBUG):
        for text, tokens in ((f"{marker} 4711", A), (f"{marker} 4712", B)):
            cache.put(PutRequest(KEY, tokens, (NewChunk(Span(0, 16), text, True, payload_of(tokens, 0)),)))
        cache.flush()
    gate.texts.clear()
    assert marker not in caplog.text
    assert not [t for t in _strings_reachable_from(cache) if marker in t]


def _strings_reachable_from(root: object) -> list[str]:
    seen: set[int] = set()
    todo, found = [root], []
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type) or type(item).__name__ in ("module", "function", "frame"):
            continue
        seen.add(id(item))
        if isinstance(item, str):
            found.append(item)
        todo.extend(gc.get_referents(item))
    return found


def test_a_cache_without_embedder_matches_by_hash(cache: LocalCache) -> None:
    plain = LocalCache(1 << 20)
    assert plain.open(NS).embedder == ""
    plain.put(offer(KEY, [A, B]))
    result = plain.match(ask(KEY, [A, EDITED], threshold=0.0))
    assert shape(result.matches) == [("prefix", 0, 16), ("prefix", 16, 23)]
    assert result.embedded_chunks == 0


def test_a_forgotten_cache_is_collected(gate: Gate) -> None:
    gate.go.set()
    cache = LocalCache(1 << 20, gate)
    cache.open(NS)
    cache.put(offer(KEY, [A]))
    cache.flush()
    ended = weakref.ref(cache)
    for thread in threading.enumerate():
        if thread.name == "kvboost-embedding":
            thread.join(20)
    del cache
    gc.collect()
    assert ended() is None


def test_a_namespace_that_is_busy_keeps_no_other_waiting(cache: LocalCache) -> None:
    other = namespace(tenant="other")
    cache.open(other)
    cache.put(offer(KEY, [A]))
    with cache._rooms[KEY].table(), ThreadPoolExecutor(1) as pool:

        def work() -> int:
            cache.put(offer(other.key, [A, B]))
            found = cache.match(ask(other.key, [A, B])).matches
            return len(list(cache.fetch(other.key, [m.donor.chunk_id for m in found])))

        assert pool.submit(work).result(20) == 2


def test_dropping_a_large_namespace_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, other = LocalCache(1 << 30), namespace(tenant="other")
    for each in (NS, other):
        cache.open(each)
    cache.put(offer(KEY, [words(f"{i:x}") for i in range(200)]))
    begun, go_on = threading.Event(), threading.Event()
    dissolve = NamespaceTable.dissolve

    def slow(table: NamespaceTable) -> int:
        begun.set()
        assert go_on.wait(20)
        return dissolve(table)

    monkeypatch.setattr(NamespaceTable, "dissolve", slow)
    with ThreadPoolExecutor(1) as pool:
        dropping = pool.submit(cache.drop, KEY)
        assert begun.wait(20)
        assert cache.stats().stored_bytes == 0
        with pytest.raises(UnknownNamespaceError):
            cache.match(ask(KEY, [A]))
        cache.open(NS)  # a new one of the same name
        for key in (KEY, other.key):
            assert cache.put(offer(key, [A])).stored == 1
        go_on.set()
        assert dropping.result(20) == 200
    assert [n.chunks for n in cache.stats().namespaces] == [1, 1]


def test_a_namespace_dropped_between_the_steps_of_a_call_is_unknown(cache: LocalCache, gate: Gate) -> None:
    gate.go.set()
    cache.put(offer(KEY, [A, B]))
    cache.flush()
    gate.go.clear()
    gate.entered.clear()
    with ThreadPoolExecutor(1) as pool:
        look_up = pool.submit(cache.match, ask(KEY, [words("z"), EDITED], threshold=0.5))
        assert gate.entered.wait(20)
        cache.drop(KEY)
        gate.go.set()
        with pytest.raises(UnknownNamespaceError):
            look_up.result(20)


def test_what_a_refused_put_took_of_the_budget_is_given_back(cache: LocalCache) -> None:
    good = offer(KEY, [A])
    spoilt = NewChunk(Span(0, 16), "a", True, b"\xff" * len(memoryview(good.chunks[0].payload)))
    with pytest.raises(NonFiniteError):
        cache.put(PutRequest(KEY, A, (spoilt,)))
    assert cache._budget.used_bytes == 0


def test_large_and_small_chunks_share_the_budget() -> None:
    cache = LocalCache(held_bytes(100))
    cache.open(NS)
    for i, size in enumerate((1, 64, 16, 3, 100, 50, 50, 64)):
        assert cache.put(offer(KEY, [words(f"n{i}", size)])).stored == 1
        stats = cache.stats()
        assert stats.stored_bytes + stats.index_bytes <= held_bytes(100)


@pytest.mark.parametrize("name", ["max_bytes", "max_variants", "embed_batch", "max_waiting_embeddings"])
def test_settings_below_one_are_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=name):
        LocalCache(**{name: 0})


def test_turn_markers_are_kept_under_many_histories_but_not_without_bound() -> None:
    cache = LocalCache(1 << 20)
    cache.open(namespace())
    marker = words("mk", 6)
    for i in range(MANY_VARIANTS + 6):
        cache.put(offer(namespace().key, [words(f"t{i}"), marker]))
    kept = [i for i in range(MANY_VARIANTS + 6) if covered(cache, [words(f"t{i}"), marker]) == 22]
    assert kept == list(range(6, MANY_VARIANTS + 6))


def covered(cache: LocalCache, chunks: list[tuple[int, ...]]) -> int:
    """Return how many tokens the prefix tier covers."""
    matches = cache.match(ask(namespace().key, chunks)).matches
    return sum(len(m.target) for m in matches if m.tier is Tier.PREFIX)
