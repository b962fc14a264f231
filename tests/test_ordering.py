"""Cache-aware order: a permutation, never worse than the order given, and only what helps is moved."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.documents import DocumentOrder
from kvboost.errors import InputError
from kvboost.index import LocalCache
from kvboost.ordering import MIN_GAIN_TOKENS, order_documents
from kvboost.types import Tier
from tests.contracts.chunks import Tokens, ask, join, namespace, offer, words

NS = namespace()
KEY = NS.key
BEFORE = words("sys")
DOCUMENTS = {name: (words(f"{name}0"), words(f"{name}1", 10)) for name in "abcdef"}


def filled(*sequences: str) -> LocalCache:
    """Return a cache of prompts, each of the documents named by its letters."""
    cache = LocalCache(1 << 22, max_variants=1000)
    cache.open(NS)
    for names in sequences:
        cache.put(offer(KEY, [BEFORE, *(chunk for name in names for chunk in DOCUMENTS[name])]))
    return cache


def ordered(cache: LocalCache, names: str, **limits: int) -> tuple[str, DocumentOrder]:
    found = order_documents(cache, KEY, BEFORE, [join(DOCUMENTS[name]) for name in names], **limits)
    return "".join(found.apply(names)), found


def lossless(cache: LocalCache, names: str) -> int:
    """Return the prefix that an ordinary look-up finds."""
    chunks: list[Tokens] = [BEFORE, *(chunk for name in names for chunk in DOCUMENTS[name])]
    at = 0
    for match in cache.match(ask(KEY, chunks)).matches:
        if match.tier is Tier.PREFIX and match.target.start == at:
            at = match.target.end
    return at


@pytest.mark.parametrize(
    ("cached", "asked", "wanted"),
    [
        ((), "abc", "abc"),
        (("abc",), "cab", "abc"),  # the whole path
        (("ab",), "fbae", "abfe"),  # what is not on the path keeps its order
        (("ab", "ba"), "ba", "ba"),  # the order given is as good
        (("a", "bcd"), "adcb", "bcda"),  # the first step that leads furthest, not the nearest
    ],
)
def test_the_longest_cached_path_goes_first(cached: tuple[str, ...], asked: str, wanted: str) -> None:
    assert ordered(filled(*cached), asked)[0] == wanted


def test_a_document_that_only_begins_alike_is_moved_from_a_chunks_length_on() -> None:
    cache = filled("a")
    own = DOCUMENTS["a"]
    other = words("oth", 30)
    for shared, moved in ((MIN_GAIN_TOKENS, True), (MIN_GAIN_TOKENS - 1, False)):
        alike = join(own)[:shared] + other
        found = order_documents(cache, KEY, BEFORE, [other, alike])
        assert found.indices == ((1, 0) if moved else (0, 1))


@settings(max_examples=150, deadline=None)
@given(
    cached=st.lists(st.permutations("abcdef").map("".join), max_size=4),
    cut=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    asked=st.permutations("abcdef").map("".join),
    count=st.integers(1, 6),
    budget=st.integers(1, 80),
)
def test_properties(cached: list[str], cut: list[int], asked: str, count: int, budget: int) -> None:
    cache = filled(*(names[:n] for names, n in zip(cached, cut, strict=False)))
    asked = asked[:count]
    names, found = ordered(cache, asked, max_look_ups=budget)
    assert sorted(names) == sorted(asked)
    assert lossless(cache, names) == found.prefix_tokens >= found.given_prefix_tokens == lossless(cache, asked)
    assert ordered(cache, asked, max_look_ups=budget) == (names, found)
    # Behind the cached path all stand as they were given.
    lengths = [len(BEFORE) + sum(len(join(DOCUMENTS[name])) for name in names[:n]) for n in range(count + 1)]
    on_path = sum(length < found.prefix_tokens for length in lengths)
    rest = [asked.index(name) for name in names[on_path:]]
    assert rest == sorted(rest)


def test_nothing_is_looked_up_twice_where_the_history_is_not_cached() -> None:
    cache = LocalCache(1 << 20)
    cache.open(NS)
    ordered(cache, "abcdef")
    assert cache.stats().namespaces[0].queries == 2


def test_wrong_input_is_named() -> None:
    cache = filled()
    with pytest.raises(InputError, match=r"documents\[1\]"):
        order_documents(cache, KEY, BEFORE, [(1,), ()])
    with pytest.raises(InputError, match="max_look_ups"):
        order_documents(cache, KEY, BEFORE, [(1,)], max_look_ups=0)
    with pytest.raises(InputError, match="items"):
        DocumentOrder((0, 1), 0, 0).apply([1])
    assert order_documents(cache, KEY, (), []).indices == ()
