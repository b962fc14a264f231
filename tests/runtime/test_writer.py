"""Storing in the background: in order, off the critical path, and no failure goes unnoticed."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kvboost.errors import CacheUnavailableError, FallbackWarning, StoringError
from kvboost.runtime.control.counters import ReuseCounters
from kvboost.runtime.serve.writer import MOST_WAITING, Writer
from kvboost.types import NewChunk, PutReceipt, PutRequest, Span


def request(number):
    return PutRequest("n", (number,), (NewChunk(Span(0, 1), "", True, b""),))


class Recorder:
    """Keeps what is put; fails where the token is negative, waits for ``gate`` where it is 0."""

    def __init__(self):
        self.seen = []
        self.gate = threading.Event()

    def put(self, put):
        (number,) = put.token_ids
        if number == 0:
            self.gate.wait(10.0)
        if number < 0:
            raise CacheUnavailableError("gone")
        self.seen.append(number)
        return PutReceipt(stored=1)


@pytest.fixture
def parts():
    cache, counters = Recorder(), ReuseCounters()
    writer = Writer(cache, counters)
    yield writer, cache, counters
    cache.gate.set()
    writer.close()


def test_requests_are_put_in_order(parts):
    writer, cache, counters = parts
    for number in range(1, 9):
        writer.submit(lambda number=number: request(number))
    writer.flush()
    assert cache.seen == list(range(1, 9))
    assert counters.snapshot()["stored_chunks"] == 8


def test_puts_do_not_pile_up_behind_a_cache_that_hangs(parts):
    writer, cache, counters = parts
    jobs = [writer.submit(lambda: request(0))]
    jobs += [writer.submit(lambda number=number: request(number)) for number in range(1, MOST_WAITING + 6)]
    dropped = jobs[MOST_WAITING:]
    assert all("does not keep up" in str(job.exception(10)) for job in dropped)
    assert counters.snapshot()["puts_dropped"] == len(dropped) == 6
    cache.gate.set()
    writer.flush()
    assert cache.seen == list(range(MOST_WAITING))


def test_nothing_is_cut_out_for_a_cache_that_is_left_alone(parts):
    writer, cache, counters = parts
    cache.fault = "it did not answer"
    built = []
    job = writer.submit(lambda: built.append(1), at_once=True)
    with pytest.raises(CacheUnavailableError, match="did not answer"):
        job.result(10)
    assert built == []
    writer.flush()  # nothing more to be warned of: the requests tell of such a cache themselves
    assert counters.snapshot() == {"puts_dropped": 1}


def test_a_prompt_waits_for_those_that_it_goes_on_from(parts):
    writer, cache, _ = parts
    own, other = list(range(40)), list(range(100, 140))
    writer.submit(lambda: request(0), prompt=own)
    started, ended = threading.Event(), threading.Event()

    def wait(token_ids):
        started.set()
        writer.await_turn(token_ids, 60.0)
        ended.set()

    writer.await_turn([*other, 7], 60.0)  # returns, while the put hangs
    writer.await_turn(own[:20], 60.0)
    # The last tokens of the prompt before were cut in another way when an answer followed them.
    thread = threading.Thread(target=wait, args=([*own[:-3], 500, 501, 502],))
    thread.start()
    assert started.wait(10.0)
    assert not ended.is_set()
    cache.gate.set()
    thread.join(60.0)
    assert ended.is_set()


def test_submitting_does_not_wait(parts):
    writer, cache, _ = parts
    writer.submit(lambda: request(0))
    writer.submit(lambda: request(1))
    assert cache.seen == []
    cache.gate.set()
    writer.flush()
    assert cache.seen == [0, 1]


def test_a_flush_gives_up_after_its_time_and_the_next_one_waits_again(parts):
    writer, cache, _ = parts
    writer.submit(lambda: request(0))
    writer.flush(0.01)
    assert cache.seen == []
    cache.gate.set()
    writer.flush()
    assert cache.seen == [0]


def test_every_caller_waits_for_its_own_put_though_another_waits_for_it_too(parts):
    """The slab that the put reads belongs to the caller as soon as the flush returns."""
    writer, cache, _ = parts
    writer.submit(lambda: request(0))
    waiting = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: (waiting.set(), writer.flush()))
        waiting.wait(10.0)
        writer.flush(0.05)  # whichever of the two asks first
        assert cache.seen == []
        opener = threading.Timer(0.05, cache.gate.set)
        opener.start()
        writer.flush()
        assert cache.seen == [0]
        other.result()


def test_what_is_built_at_once_is_not_read_any_more(parts):
    writer, cache, _ = parts
    owned = [7]
    with writer.held():
        writer.submit(lambda: request(owned[0]), at_once=True)
        owned[0] = 8
    writer.flush()
    assert cache.seen == [7]


@pytest.mark.parametrize("at_once", [False, True])
def test_an_error_that_nobody_expects_is_typed_warned_about_and_counted(parts, at_once, caplog):
    writer, _, counters = parts

    def build():
        raise ValueError("x")

    job = writer.submit(build, at_once)
    with pytest.warns(FallbackWarning, match="ValueError while they were cut out"):
        writer.flush()
    assert isinstance(job.exception(), StoringError)
    assert isinstance(job.exception().__cause__, ValueError)
    assert counters.snapshot()["put_failures"] == 1
    assert "storing new chunks failed" in caplog.text
    writer.flush()  # warned about once


def test_a_failure_is_warned_about_once_and_the_rest_is_put(parts):
    writer, cache, counters = parts
    for number in (1, -1, 2):
        writer.submit(lambda number=number: request(number))
    with pytest.warns(FallbackWarning, match="gone"):
        writer.flush()
    writer.flush()
    assert cache.seen == [1, 2]
    assert counters.snapshot()["put_failures"] == 1


def test_no_memory_left_costs_the_chunks_alone(parts):
    writer, _, counters = parts

    def build():
        raise torch.OutOfMemoryError("no memory")

    writer.submit(build)
    with pytest.warns(FallbackWarning, match="no memory"):
        writer.flush()
    assert counters.snapshot()["put_failures"] == 1


def test_nothing_to_put_asks_nothing(parts):
    writer, cache, _ = parts
    writer.submit(lambda: PutRequest("n", (5,), ()))
    writer.flush()
    assert cache.seen == []


def test_closing_puts_what_is_pending():
    cache = Recorder()
    writer = Writer(cache, ReuseCounters())
    writer.submit(lambda: request(3))
    writer.close()
    assert cache.seen == [3]


@pytest.mark.filterwarnings("ignore::kvboost.errors.FallbackWarning")
def test_no_failure_is_lost_between_threads(parts):
    writer, _, counters = parts
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def work(_):
            for _ in range(100):
                writer.submit(lambda: request(-1))
                writer.flush()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        writer.flush()
    finally:
        sys.setswitchinterval(interval)
    assert counters.snapshot()["put_failures"] == 400


def test_while_held_nothing_is_put(parts):
    writer, cache, _ = parts
    with writer.held():
        writer.submit(lambda: request(4))
        writer.flush(0.02)
        assert cache.seen == []
    writer.flush()
    assert cache.seen == [4]
