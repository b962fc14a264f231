"""A cache that is slow or broken, and listeners that fail, cost their own request and nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvboost.policy import ReusePolicy
from kvboost.runtime.batching import Ended
from kvboost.types import MatchQuery, MatchResult, PutReceipt, PutRequest
from tests.boosting import document, new_cache, prompt
from tests.faulty_cache import FaultyCache
from tests.runtime.batching.listeners import TIMEOUT_S, Heard, alone, ask, request
from tests.runtime.batching.test_faults import batch_of, ids, until
from tests.runtime.test_non_finite import poisoned


class Held:
    """Holds calls back until they are let go; knows when one has come."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self.go = threading.Event()

    def hold(self) -> None:
        self.come.set()
        assert self.go.wait(TIMEOUT_S)


class SlowCache(FaultyCache):
    """A cache whose look-ups and puts wait where they are told to."""

    def __init__(self) -> None:
        super().__init__(new_cache())
        self.before_match: Callable[[MatchQuery], None] = lambda query: None
        self.before_put: Callable[[PutRequest], None] = lambda request: None

    def match(self, query: MatchQuery) -> MatchResult:
        self.before_match(query)
        return super().match(query)

    def put(self, request: PutRequest) -> PutReceipt:
        self.before_put(request)
        return super().put(request)


def text(seed: int) -> list[int]:
    return [int(token) for token in prompt(document(seed))[0]]


def seats(batch: Any) -> tuple[int, int]:
    return batch.state().running, batch.budget.taken


def test_answers_go_on_while_the_look_up_of_another_hangs() -> None:
    cache, held = SlowCache(), Held()
    with batch_of(cache, max_batch=8) as (_, batch):
        cache.before_match = lambda query: held.hold()
        running = [ask(batch, ids(12, i), 60, skip_cache=True) for i in range(4)]
        slow = [ask(batch, text(i), 2) for i in range(3)]
        assert held.come.wait(TIMEOUT_S)
        for each in running:  # each of them to its end, though no look-up has ended yet
            assert len(each.answer()) == 60
        assert not any(each.tokens for each in slow)
        held.go.set()
        assert all(len(each.answer()) == 2 for each in slow)
        until(lambda: seats(batch) == (0, 0))


def test_a_prompt_that_needs_no_look_up_goes_before_those_that_wait_for_theirs() -> None:
    cache, held = SlowCache(), Held()
    with batch_of(cache, max_batch=8) as (_, batch):
        cache.before_match = lambda query: held.hold()
        slow = [ask(batch, text(i), 2) for i in range(6)]  # more than there are threads
        assert held.come.wait(TIMEOUT_S)
        assert len(ask(batch, ids(12, 9), 5, skip_cache=True).answer()) == 5
        held.go.set()
        assert all(len(each.answer()) == 2 for each in slow)


def test_a_caller_that_goes_during_its_look_up_is_counted_once_and_frees_its_place() -> None:
    cache, held = SlowCache(), Held()
    with batch_of(cache, max_batch=1) as (engine, batch):
        cache.before_match = lambda query: held.hold()
        gone = ask(batch, text(1), 5)
        assert held.come.wait(TIMEOUT_S)
        gone.left = True
        held.go.set()
        assert len(ask(batch, text(2), 3).answer()) == 3
        assert gone.tokens == []
        assert not gone.over.is_set()
        assert engine.counters.snapshot()["cancelled_requests"] == 1
        until(lambda: seats(batch) == (0, 0))


def test_closing_waits_for_who_is_being_prepared() -> None:
    cache, held = SlowCache(), Held()
    with batch_of(cache) as (_, batch):
        cache.before_match = lambda query: held.hold()
        heard = ask(batch, text(1), 3)
        assert held.come.wait(TIMEOUT_S)
        closing = threading.Thread(target=batch.close)
        closing.start()
        held.go.set()
        closing.join(TIMEOUT_S)
        assert len(heard.answer()) == 3
        assert seats(batch) == (0, 0)


def test_a_chat_waits_for_its_own_last_turn_and_nobody_for_a_strangers() -> None:
    cache, held = SlowCache(), Held()
    with batch_of(cache, max_batch=4) as (_, batch):
        cache.before_put = lambda request: held.hold()
        first = ask(batch, text(1), 6)
        turn = [*text(1), *first.answer()]
        assert held.come.wait(TIMEOUT_S)
        assert len(ask(batch, text(2), 3).answer()) == 3  # while the put above has not ended
        following = ask(batch, [*turn, *ids(9, 4)], 3)
        assert len(ask(batch, text(3), 3).answer()) == 3
        assert not following.tokens
        held.go.set()
        report = following.report()
        assert report.reused_tokens >= len(text(1)) // 2  # its own turn was there


@pytest.mark.filterwarnings("ignore::kvboost.errors.FallbackWarning")
def test_logits_that_reuse_breaks_mean_full_prefill_in_a_batch_too() -> None:
    cache = FaultyCache(new_cache())
    with batch_of(cache) as (engine, batch):
        first = prompt(*(document(i) for i in range(3)))[0].tolist()
        moved = prompt(*(document(i) for i in (2, 1, 0)))[0].tolist()
        ask(batch, first, 2).answer()
        engine.writer.flush()
        poisoned(cache, 0)
        cache.puts.clear()
        heard = ask(batch, moved, 6, policy=ReusePolicy(repair="none", worth_it=False, audit_rate=0.0))
        good = ask(batch, ids(12, 1), 6, skip_cache=True)
        assert heard.answer() == alone(engine, request(moved, 6, skip_cache=True))
        assert good.answer() == alone(engine, request(ids(12, 1), 6, skip_cache=True))
        assert "BrokenLogitsError" in str(heard.report().fallback)
        assert heard.report().reused_tokens == 0
        assert heard.ended().stored is None
        assert engine.counters.snapshot()["non_finite_logits"] == 1
        assert seats(batch) == (0, 0)


@pytest.mark.parametrize("fails", ["on_end", "gone"])
def test_a_listener_that_breaks_is_accounted_for_once(fails: str) -> None:
    class Broken(Heard):
        def on_end(self, ended: Ended) -> None:
            super().on_end(ended)
            if fails == "on_end":
                raise RuntimeError("the listener broke at the end")

        def gone(self) -> bool:
            if fails == "gone" and self.tokens:
                raise RuntimeError("the listener broke")
            return False

    with batch_of() as (engine, batch):
        broken, good = Broken(), Heard()
        ask(batch, ids(12, 1), 4, heard=broken)
        ask(batch, ids(12, 2), 12, heard=good, skip_cache=True)
        assert len(good.answer()) == 12
        until(lambda: seats(batch) == (0, 0))
        assert broken._error is None
        assert engine.counters.snapshot()["listener_failures"] >= 1
        assert len(ask(batch, ids(12, 3), 4).answer()) == 4


def test_a_row_that_cannot_be_finished_is_accounted_for_once_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with batch_of() as (engine, batch):
        with monkeypatch.context() as patched:
            patched.setattr(engine.writer, "submit", lambda *args, **more: 1 // 0)
            heard = ask(batch, ids(12, 1), 4)
            with pytest.raises(ZeroDivisionError):
                heard.ended()
        assert heard._ended is None
        until(lambda: seats(batch) == (0, 0))
        assert len(ask(batch, ids(12, 3), 4).answer()) == 4
