"""Costs fitted to timed passes: right where the timings are, robust where they are not, monotone everywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.runtime.cost.model import CostModel, TimedPass, fit

TRUE = CostModel(0.05, 0.004, 2e-6, 1e-10, 4e-10)
SIZES = [(8, 0), (64, 0), (64, 2048), (500, 0), (2000, 0), (100, 4000), (30, 8000)]

seconds = st.floats(1e-6, 1e3)
passes = st.lists(st.builds(TimedPass, st.integers(1, 9000), st.integers(0, 9000), seconds), min_size=1, max_size=40)
tokens = st.integers(0, 20_000)


def timed(sizes, factor=1.0, model=TRUE):
    return [TimedPass(new, seen, model.forward_s(new, seen) * factor) for new, seen in sizes]


def test_exact_timings_give_back_the_costs():
    found = fit(timed(SIZES), 1e-10, 4e-10)
    assert (found.pass_s, found.token_s, found.pair_s) == pytest.approx((TRUE.pass_s, TRUE.token_s, TRUE.pair_s))
    assert (found.copy_byte_s, found.rotate_byte_s) == (1e-10, 4e-10)


def test_wild_timings_count_less():
    found = fit([*timed(SIZES * 3), *timed([(64, 0), (500, 0)], factor=20.0)], 1e-10, 4e-10)
    for new, seen in SIZES:
        assert found.forward_s(new, seen) == pytest.approx(TRUE.forward_s(new, seen), rel=0.15)


def test_timings_of_the_same_size_only_are_explained_by_their_tokens():
    found = fit([TimedPass(50, 0, 0.2)] * 5, 1e-10, 4e-10)
    assert found.token_s > 0.0
    assert found.forward_s(50) == pytest.approx(0.2)


def test_a_short_pass_that_took_longer_than_a_long_one_does_not_make_tokens_free():
    assert fit([TimedPass(8, 0, 1.0), TimedPass(64, 0, 0.5)], 1e-10, 4e-10).token_s > 0.0


@given(passes, tokens, tokens, st.integers(1, 5000))
def test_more_tokens_and_a_longer_context_never_look_cheaper(points, new, seen, more):
    found = fit(points, 1e-10, 4e-10)
    assert min(found.pass_s, found.token_s, found.pair_s) >= 0.0 < found.token_s
    assert found.forward_s(new + more, seen) >= found.forward_s(new, seen)
    assert found.forward_s(new, seen + more) >= found.forward_s(new, seen)


def test_placing_costs_by_the_byte():
    assert TRUE.place_s(100, 0) == pytest.approx(1e-8)
    assert TRUE.place_s(100, 100) == pytest.approx(5e-8)
