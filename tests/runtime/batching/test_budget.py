"""K/V of the requests under way stay within a number of bytes."""

from __future__ import annotations

import threading

import pytest

from kvboost.config import load
from kvboost.errors import ConfigError, InputError
from kvboost.runtime.batching import Batch
from kvboost.runtime.batching.budget import ByteBudget
from kvboost.runtime.serve.engine import Engine
from tests.runtime.batching.listeners import TIMEOUT_S, Heard, alone, ask, request
from tests.runtime.batching.test_batch import batch_of, ids
from tests.runtime_service import runtime_service


def bytes_of(engine: Engine, prompt_tokens: int, new_tokens: int) -> int:
    return ByteBudget(0, engine.preparer.support.layout.token_bytes).needed(request(ids(prompt_tokens, 0), new_tokens))


def with_room_for(batch: Batch, prompt_tokens: int, new_tokens: int, count: int) -> None:
    """Let ``count`` such requests be under way together."""
    batch.budget.max_bytes = count * bytes_of(batch.engine, prompt_tokens, new_tokens)


def test_who_does_not_fit_beside_the_others_waits_and_is_answered_all_the_same() -> None:
    with batch_of(max_batch=8) as (engine, batch):
        with_room_for(batch, 20, 6, count=2)
        assert batch.budget.max_bytes is not None
        most: list[tuple[int, int]] = []

        def look(count: int) -> None:
            most.append((batch.budget.taken, len(batch._running)))

        asked = [request(ids(20, seed), 6, skip_cache=True) for seed in range(6)]
        expected = [alone(engine, each) for each in asked]
        heard = [Heard(look) for _ in asked]
        for each, listener in zip(asked, heard, strict=True):
            batch.submit(each, listener)
        assert [listener.answer() for listener in heard] == expected
        assert max(taken for taken, _ in most) <= batch.budget.max_bytes
        assert max(rows for _, rows in most) == 2
        assert batch.budget.taken == 0


def test_a_small_request_does_not_overtake_a_large_one_that_waits_for_room() -> None:
    with batch_of(max_batch=8) as (_, batch):
        with_room_for(batch, 100, 4, count=1)
        going_on, started = threading.Event(), threading.Event()
        order: list[str] = []

        def hold(count: int) -> None:
            started.set()
            going_on.wait(TIMEOUT_S)

        def note(name: str, count: int) -> None:
            if count == 1:
                order.append(name)

        first = ask(batch, ids(40, 1), 2, heard=Heard(hold))
        assert started.wait(TIMEOUT_S)
        large = ask(batch, ids(100, 2), 4, heard=Heard(lambda count: note("large", count)))
        small = ask(batch, ids(4, 3), 2, heard=Heard(lambda count: note("small", count)))
        going_on.set()
        for heard in (first, large, small):
            heard.answer()
        assert order == ["large", "small"]


def test_what_would_never_fit_is_refused_at_once_and_nobody_else() -> None:
    with batch_of() as (_, batch):
        with_room_for(batch, 20, 6, count=1)
        with pytest.raises(InputError, match=r"21 tokens and an answer of up to 6.*runtime\.max_batch_bytes.*shorten"):
            ask(batch, ids(21, 0), 6)
        assert len(ask(batch, ids(20, 0), 6).answer()) == 6


def test_a_caller_that_leaves_and_a_row_that_fails_give_their_bytes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with batch_of() as (_, batch):
        with_room_for(batch, 20, 300, count=1)
        leaves = Heard()
        leaves._on_each = lambda count: setattr(leaves, "left", count == 2)  # type: ignore[assignment]
        ask(batch, ids(20, 0), 300, heard=leaves)
        assert len(ask(batch, ids(20, 1), 6).answer()) == 6

        def fail(*_: object) -> None:
            raise RuntimeError("out of memory")

        with monkeypatch.context() as patch:
            patch.setattr("kvboost.runtime.batching.row.Row.prefill", fail)
            with pytest.raises(RuntimeError):
                ask(batch, ids(20, 2), 6).answer()
        assert len(ask(batch, ids(20, 3), 300).answer()) == 300


@pytest.mark.parametrize("scored", [False, True])
def test_callers_of_the_service_get_the_sentence(scored: bool) -> None:
    with runtime_service(max_bytes=1 << 16) as running, pytest.raises(InputError, match=r"runtime\.max_batch_bytes"):
        running.client.answer("water and light " * 20, max_new_tokens=200, score_against_full=scored)


def test_without_a_number_half_of_the_free_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvboost.runtime.batching.budget.available_bytes", lambda device: 1000)
    with batch_of() as (_, batch):
        assert batch.budget.max_bytes == 500


def test_the_setting_takes_sizes() -> None:
    assert load(None, {"KVBOOST_RUNTIME__MAX_BATCH_BYTES": "3GiB"}).config.runtime.max_batch_bytes == 3 << 30
    with pytest.raises(ConfigError, match="max_batch_bytes -1 must be at least 0"):
        load(None, {}, {"runtime.max_batch_bytes": -1})
