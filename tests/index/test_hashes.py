"""Prefix and content hashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.errors import InputError
from kvboost.index.hashes import SequenceHasher, content_hash, prefix_hash

_tokens = st.lists(st.integers(0, 2**31 - 1), max_size=60)


@given(_tokens, st.lists(st.integers(0, 60), max_size=20))
def test_any_order_of_positions_gives_the_hash_of_that_prefix(tokens: list[int], ends: list[int]) -> None:
    hasher = SequenceHasher(tokens)
    for end in (e for e in ends if e <= len(tokens)):
        assert hasher.at(end) == prefix_hash(tokens[:end])


@given(_tokens, _tokens)
def test_equal_hashes_mean_equal_tokens(a: list[int], b: list[int]) -> None:
    assert (prefix_hash(a) == prefix_hash(b)) == (a == b)
    assert (content_hash(a) == content_hash(b)) == (a == b)


@given(_tokens)
def test_a_prefix_hash_is_no_content_hash(tokens: list[int]) -> None:
    assert prefix_hash(tokens) != content_hash(tokens)


def test_hashes_do_not_change_between_versions() -> None:
    assert prefix_hash([1, 2, 3]).hex().startswith("bfa824549ecbd021")
    assert content_hash([1, 2, 3]).hex().startswith("a5f02f578fa10542")


@pytest.mark.parametrize("bad", [[-1], [2**31], [2**70], [1.5], ["a"], [None]])
def test_what_is_no_token_id_is_refused(bad: list[object]) -> None:
    with pytest.raises(InputError, match="token_ids"):
        prefix_hash(bad)  # type: ignore[arg-type]
