"""One at a time, in order; who leaves does not hold up the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from kvboost.errors import InputError
from kvboost.services.runtime_server.turns import Turn, Turns


class Call:
    """What a turn needs of a gRPC call's context."""

    def __init__(self, over: bool = False) -> None:
        self._over = over
        self.callbacks: list[Callable[[], None]] = []
        self.waiting = threading.Event()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.callbacks.append(callback)
        self.waiting.set()
        return not self._over

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise RuntimeError(f"{code.name}: {details}")

    def end(self) -> None:
        for callback in self.callbacks:
            callback()


@pytest.fixture
def turns() -> Iterator[Turns]:
    turns = Turns(3)
    yield turns
    turns.close()


def test_events_come_in_order_and_end(turns: Turns) -> None:
    def work(turn: Turn[int]) -> None:
        for i in range(3):
            turn.emit(i)

    assert list(turns.events(work, Call())) == [0, 1, 2]


def test_an_error_reaches_the_caller_after_what_came_before_it(turns: Turns) -> None:
    def work(turn: Turn[int]) -> None:
        turn.emit(1)
        raise InputError("wrong")

    events = turns.events(work, Call())
    assert next(events) == 1
    with pytest.raises(InputError, match="wrong"):
        next(events)


def test_who_leaves_the_queue_is_never_served_and_the_next_one_is(turns: Turns) -> None:
    open_up, served = threading.Event(), []
    first, second, third = Call(), Call(), Call()

    def one(turn: Turn[str]) -> None:
        open_up.wait(60)
        served.append("first")
        turn.emit("first")

    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(list, turns.events(one, first))]
        first.waiting.wait(60)
        for name, call in (("second", second), ("third", third)):
            answers.append(pool.submit(list, turns.events(lambda turn, name=name: served.append(name), call)))
            call.waiting.wait(60)
        second.end()
        assert answers[1].result(60) == []  # at once, though the first is not done
        open_up.set()
        assert answers[0].result(60) == ["first"]
        assert answers[2].result(60) == []
    assert served == ["first", "third"]


def test_work_is_told_that_its_caller_has_gone(turns: Turns) -> None:
    call, began, told = Call(), threading.Event(), threading.Event()

    def work(turn: Turn[int]) -> None:
        began.set()
        while not turn.gone():
            turn.emit(0)
        told.set()

    with ThreadPoolExecutor() as pool:
        answer = pool.submit(lambda: sum(1 for _ in turns.events(work, call)))
        began.wait(60)
        call.waiting.wait(60)
        call.end()
        answer.result(60)
        assert told.wait(60)


def test_a_call_that_ended_already_is_not_served(turns: Turns) -> None:
    served: list[int] = []
    blocker = threading.Event()
    with ThreadPoolExecutor() as pool:
        busy = Call()
        first = pool.submit(list, turns.events(lambda turn: blocker.wait(60) and None, busy))
        busy.waiting.wait(60)
        assert list(turns.events(lambda turn: served.append(1), Call(over=True))) == []
        blocker.set()
        first.result(60)
    turns.run(lambda: None)
    assert served == []


def test_more_callers_than_allowed_are_refused_and_places_become_free_again(turns: Turns) -> None:
    open_up = threading.Event()
    calls = [Call() for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(list, turns.events(lambda turn: open_up.wait(60) and None, call)) for call in calls]
        for call in calls:
            call.waiting.wait(60)
        with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED: 3 calls"):
            list(turns.events(lambda turn: None, Call()))
        open_up.set()
        for answer in answers:
            answer.result(60)
    for _ in range(4):
        assert list(turns.events(lambda turn: turn.emit(1), Call())) == [1]
