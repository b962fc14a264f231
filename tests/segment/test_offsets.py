"""Token ids back to text and character spans."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.errors import PromptError, TokenizerError
from kvboost.segment.offsets import TokenTexts
from tests.segment.prompts import byte_level, ids_of, metaspace, prompts

TOKENIZERS = {"byte_level": byte_level, "metaspace": metaspace}


def check(found, n):
    assert len(found.starts) == n + 1
    assert found.starts[0] == 0
    assert found.starts[-1] == len(found.text)
    assert all(a <= b for a, b in pairwise(found.starts))


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)
@given(text=prompts)
@settings(max_examples=40, deadline=None)
def test_both_ways_agree_on_canonical_ids(make, text):
    texts = TokenTexts(make())
    ids = ids_of(make(), text)
    found = texts(ids)
    check(found, len(ids))
    by_decoding = texts._by_decoding(ids)
    assert by_decoding[0] == found.text
    if texts._by_encoding(ids):
        assert by_decoding[1] == found.starts


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_ids_get_monotone_offsets(make, data):
    ids = data.draw(st.lists(st.integers(0, len(make()) + 5), min_size=1, max_size=120))
    check(TokenTexts(make())(ids), len(ids))


def test_tokens_that_share_a_character():
    ids = ids_of(byte_level(), "a😀b")
    found = TokenTexts(byte_level())(ids)
    assert found.text == "a😀b"
    assert found.starts == [0, 1, 1, 1, 1, 2, 3]


def test_bos_before_sentencepiece_text():
    tokenizer = metaspace()
    found = TokenTexts(tokenizer)([tokenizer.bos_token_id, *ids_of(tokenizer, "He went home")])
    assert found.text == "<s> He went home"
    assert found.special == ((0, 3),)


def test_ids_that_the_tokenizer_would_not_choose():
    tokenizer = byte_level()
    ids = [i for char in "went home" for i in ids_of(tokenizer, char)]
    assert ids != ids_of(tokenizer, "went home")
    found = TokenTexts(tokenizer)(ids)
    assert found.text == "went home"
    assert found.starts == list(range(10))


def test_bytes_that_never_become_a_character_do_not_stall():
    lead = ids_of(byte_level(), "é")[0]
    found = TokenTexts(byte_level())([lead] * 200 + ids_of(byte_level(), " went"))
    check(found, 200 + len(ids_of(byte_level(), " went")))
    assert found.text.endswith(" went")


def test_truncation_of_the_callers_tokenizer_does_not_matter():
    tokenizer = byte_level()
    ids = ids_of(tokenizer, "The cache holds keys and values of every chunk.")
    tokenizer("x", truncation=True, max_length=2)
    try:
        assert TokenTexts(tokenizer)._by_encoding(ids) is not None
    finally:
        tokenizer.backend_tokenizer.no_truncation()


@pytest.mark.parametrize("ids", [[-1], [1.5], ["a"], [[1, 2]], [2**40]])
def test_what_is_no_id_is_refused(ids):
    with pytest.raises(PromptError, match="token_ids"):
        TokenTexts(byte_level())(ids)


def test_a_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(TokenizerError, match="Slow gives no character offsets; load a fast one"):
        TokenTexts(Slow())
