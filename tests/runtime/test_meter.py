"""What fetching costs, from fetches: each way on its own, robust to outliers, quick to follow a lasting change."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.runtime.cost.meter import LEAST, DecayingMedian, FetchCost, FetchMeter, path_of
from kvboost.types import ChunkKV, Handover

positive = st.floats(1e-9, 1e6)


def median_of(*values):
    median = DecayingMedian()
    for value in values:
        median.add(value)
    return median.value


@given(st.lists(positive, max_size=LEAST - 1))
def test_a_few_values_say_nothing(values):
    assert median_of(*values) is None


@given(st.lists(positive, min_size=LEAST, max_size=80))
def test_the_estimate_is_one_of_the_values(values):
    assert median_of(*values) in values


@given(st.lists(st.floats(1.0, 2.0), min_size=8, max_size=40), st.lists(positive, max_size=2))
def test_two_wild_values_do_not_move_it_out_of_the_usual_range(usual, wild):
    assert 1.0 <= median_of(*usual, *wild) <= 2.0


@given(st.lists(positive, max_size=60))
def test_a_lasting_change_is_followed(before):
    assert median_of(*before, *[5.0] * 5) == 5.0


@given(st.lists(positive, min_size=LEAST, max_size=40), st.floats(1.0, 10.0))
def test_slower_values_never_give_a_lower_estimate(values, factor):
    assert median_of(*[v * factor for v in values]) >= median_of(*values)


def test_each_way_is_measured_on_its_own():
    meter = FetchMeter()
    for _ in range(LEAST):
        meter.observe(Handover.FRAMES, 0.5, 100, 4.0, 1000)
    assert meter.cost(Handover.IN_PROCESS) is None
    # The first chunk's hundred bytes took 0.4 s of its wait.
    assert meter.cost(Handover.FRAMES) == FetchCost(pytest.approx(0.1), pytest.approx(0.004))


def test_single_chunks_tell_the_round_trip_only():
    meter = FetchMeter()
    for _ in range(LEAST):
        meter.observe(Handover.FRAMES, 0.5, 100, 0.0, 0)
    assert meter.cost(Handover.FRAMES) == FetchCost(0.5, 0.0)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(0, 10**9), st.integers(0, 10**9))
def test_more_bytes_never_cost_less(round_trip_s, byte_s, nbytes, more):
    cost = FetchCost(round_trip_s, byte_s)
    assert cost.fetch_s(0) == 0.0
    assert cost.fetch_s(nbytes + more) >= cost.fetch_s(nbytes)


def chunk(number, nbytes=64):
    return ChunkKV(number, bytes(nbytes), 0)


def test_chunks_pass_through_as_they_are():
    chunks = [chunk(i) for i in range(4)]
    assert list(FetchMeter().timed(iter(chunks))) == chunks


def test_only_the_wait_is_counted_not_what_the_caller_does():
    meter = FetchMeter()
    for _ in range(LEAST):
        for _ in meter.timed(iter([chunk(0), chunk(1)])):
            time.sleep(0.05)
    cost = meter.cost(Handover.IN_PROCESS)
    assert cost is not None
    assert cost.fetch_s(128) < 0.05


def test_a_slow_cache_is_seen_to_be_slow():
    def slow():
        for i in range(3):
            time.sleep(0.02)
            yield chunk(i)

    meter = FetchMeter()
    for _ in range(LEAST):
        list(meter.timed(slow()))
    cost = meter.cost(Handover.IN_PROCESS)
    assert cost is not None
    assert cost.fetch_s(3 * 64) >= 0.04
    assert cost.byte_s >= 0.02 / 64


def test_fetches_that_break_or_find_nothing_are_not_counted():
    def broken():
        yield chunk(0)
        raise ValueError("cut")

    meter = FetchMeter()
    for _ in range(LEAST):
        assert list(meter.timed(iter([]))) == []
        with pytest.raises(ValueError, match="cut"):
            list(meter.timed(broken()))
    assert meter.cost(Handover.IN_PROCESS) is None


def test_a_fetch_is_put_down_to_the_way_that_it_came_by():
    meter = FetchMeter()
    for _ in range(LEAST):
        list(meter.timed([replace(chunk(0), handover=Handover.SHARED_MEMORY)]))
    assert meter.cost(Handover.SHARED_MEMORY) is not None
    assert meter.cost(Handover.IN_PROCESS) is None


class Says:
    handover = Handover.SHARED_MEMORY


def test_the_way_is_what_the_cache_says():
    assert path_of(object()) is Handover.IN_PROCESS
    assert path_of(Says()) is Handover.SHARED_MEMORY


def test_a_way_is_slow_only_once_it_was_timed():
    meter = FetchMeter()
    assert not meter.is_slow(Handover.FRAMES)
    for _ in range(3):
        meter.observe(Handover.FRAMES, 0.01, 1000, 0.5, 100_000_000)
        meter.observe(Handover.SHARED_MEMORY, 0.0, 1000, 0.01, 100_000_000)
    assert meter.is_slow(Handover.FRAMES)
    assert not meter.is_slow(Handover.SHARED_MEMORY)
