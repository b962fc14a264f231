"""Rows whose callers go, requests beyond the limits, and errors that must stay one row's own."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvboost.errors import FallbackWarning, KVBoostError, RuntimeBusyError, RuntimeUnavailableError
from kvboost.runtime.batching import Batch
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.serve.engine import Engine
from kvboost.types import Tier
from tests.boosting import boosted, document, new_cache, prompt, settle
from tests.faulty_cache import FaultyCache
from tests.runtime.batching.listeners import TIMEOUT_S, Heard, alone, ask, request
from tests.tiny_models import random_ids, tiny_model

POISON = 511  # a token that the planted fault below chokes on


@contextmanager
def batch_of(cache: Any = None, **limits: int) -> Iterator[tuple[Engine, Batch]]:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = None
    with boosted(model=model, cache=cache):
        batch = Batch(settle(model), **limits)
        try:
            yield batch.engine, batch
        finally:
            batch.close()


def ids(length: int, seed: int) -> list[int]:
    return [token for token in random_ids(length, seed)[0].tolist() if token != POISON]


def until(condition: Any) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def slabs() -> int:
    gc.collect()
    return sum(type(each) is SlabCache for each in gc.get_objects())


def test_a_row_whose_caller_goes_leaves_within_a_step_and_frees_its_memory() -> None:
    with batch_of() as (engine, batch):
        before = slabs()
        stays = ask(batch, ids(20, 1), 30, skip_cache=True)
        heard = Heard()
        heard._on_each = lambda count: setattr(heard, "left", count == 5)  # type: ignore[assignment]
        ask(batch, ids(20, 2), 300, heard=heard)
        assert stays.answer() == alone(engine, request(ids(20, 1), 30, skip_cache=True))
        assert len(heard.tokens) == 5
        assert not heard.over.is_set()  # there is nobody to tell
        assert batch.state().running == 0
        assert engine.counters.snapshot()["cancelled_requests"] == 1
        assert engine.counters.snapshot().get("requests", 0) == 0
        until(lambda: slabs() == before)


def test_a_caller_that_goes_while_it_waits_is_never_served_and_makes_room() -> None:
    with batch_of(max_batch=1, max_queue=1) as (_, batch):
        going_on, started = threading.Event(), threading.Event()

        def wait(count: int) -> None:
            started.set()
            going_on.wait(TIMEOUT_S)

        first = ask(batch, ids(9, 1), 2, heard=Heard(wait))
        assert started.wait(TIMEOUT_S)
        second = ask(batch, ids(9, 2), 2)
        with pytest.raises(RuntimeBusyError, match=r"1 requests are under way and 1 wait already.*runtime\.max_queue"):
            ask(batch, ids(9, 3), 2)
        second.left = True
        third = ask(batch, ids(9, 3), 2)
        assert batch.state().waiting == 1
        going_on.set()
        assert len(first.answer()) == len(third.answer()) == 2
        assert second.tokens == []
        for _ in range(3):
            ask(batch, ids(9, 4), 1).answer()


def test_a_fault_of_one_row_in_a_step_is_that_row_s_own() -> None:
    with batch_of() as (engine, batch):

        def choke(module: object, args: object, kwargs: Any) -> None:
            if POISON in kwargs["input_ids"][:, -1].tolist() and kwargs["input_ids"].shape[1] == 1:
                raise RuntimeError("out of memory")

        hook = engine.model.register_forward_pre_hook(choke, with_kwargs=True)
        heard = [Heard() for _ in range(3)]
        heard[1]._on_each = lambda count: count == 4 and batch._running[1].answer.__setitem__(-1, POISON)  # type: ignore[assignment]
        asked = [request(ids(10 + i, i), 12, skip_cache=True) for i in range(3)]
        for each, listener in zip(asked, heard, strict=True):
            batch.submit(each, listener)
        with pytest.raises(RuntimeError, match="out of memory"):
            heard[1].ended()
        got = [heard[0].answer(), heard[2].answer()]
        hook.remove()
        assert got == [alone(engine, asked[0]), alone(engine, asked[2])]
        assert batch.state().running == 0


@pytest.mark.parametrize("at", [1, 3])
def test_a_fault_while_a_token_is_told_is_that_row_s_own(at: int) -> None:
    with batch_of() as (engine, batch):
        bad = ask(batch, ids(12, 1), 8, heard=Heard(lambda count: 1 // (at - count) and False))
        good = ask(batch, ids(13, 2), 8, skip_cache=True)
        with pytest.raises(ZeroDivisionError):
            bad.ended()
        assert good.answer() == alone(engine, request(ids(13, 2), 8, skip_cache=True))
        assert batch.state().running == 0


def test_a_fault_of_the_scheduler_is_told_and_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with batch_of() as (_, batch):
        monkeypatch.setattr(batch, "_needs_all", lambda entry: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            ask(batch, ids(12, 1), 8).ended()
        monkeypatch.undo()
        assert len(ask(batch, ids(12, 1), 8).answer()) == 8


@pytest.mark.filterwarnings("ignore::kvboost.errors.FallbackWarning")
def test_a_cache_fault_means_full_prefill() -> None:
    cache = FaultyCache(new_cache())
    with batch_of(cache) as (engine, batch):
        cache.raises["match"] = KVBoostError("the cache is gone")
        text = prompt(document(1))[0].tolist()
        heard = ask(batch, text, 6)
        assert heard.answer() == alone(engine, request(text, 6, skip_cache=True))
        assert "the cache is gone" in str(heard.report().fallback)


def test_what_could_not_be_stored_is_told_who_asks() -> None:
    cache = FaultyCache(new_cache())
    with batch_of(cache) as (engine, batch):
        cache.raises["put"] = KVBoostError("no room")
        ended = ask(batch, prompt(document(1))[0].tolist(), 0).ended()
        assert ended.stored is not None
        with pytest.raises(KVBoostError, match="no room"):
            ended.stored.result(TIMEOUT_S)
        cache.raises.clear()
        with pytest.warns(FallbackWarning, match="no room"):
            engine.writer.flush()


def test_closing_serves_who_is_under_way_and_tells_the_others() -> None:
    with batch_of(max_batch=1) as (_, batch):
        started = threading.Event()
        first = ask(batch, ids(9, 1), 20, heard=Heard(lambda count: started.set()))
        second = ask(batch, ids(9, 2), 2)
        assert started.wait(TIMEOUT_S)
        batch.close()
        assert len(first.answer()) == 20
        with pytest.raises(RuntimeUnavailableError, match="shutting down"):
            second.ended()
        with pytest.raises(RuntimeUnavailableError, match="shutting down"):
            ask(batch, ids(9, 3), 2)


def test_a_model_that_changed_reuses_nothing_and_says_so() -> None:
    with batch_of() as (engine, batch):
        text = prompt(document(1, sentences=6))[0].tolist()
        ask(batch, text, 2).answer()
        engine.model.config.rms_norm_eps *= 2
        heard = ask(batch, [*text, 7, 8, 9], 2)
        report = heard.report()
        assert report.tokens_by_tier[Tier.COMPUTED] == len(text) + 3
        assert any("its configuration changed" in reason for reason in report.declined)
        assert heard.ended().stored is None  # it would be another model's K/V under this one's name
