"""Token ids back to text and character spans."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
def test_all_ways_agree_on_canonical_ids(make, text):
    texts = TokenTexts(make())
    ids = ids_of(make(), text)
    found = texts(ids)
    check(found, len(ids))
    assert texts._by_bytes(ids) == (found.text, found.starts)
    assert texts._by_decoding(ids) == (found.text, found.starts)
    by_encoding = texts._by_encoding(ids)
    assert by_encoding in (None, (found.text, found.starts))


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_ids_get_monotone_offsets(make, data):
    ids = data.draw(st.lists(st.integers(0, len(make()) + 5), min_size=1, max_size=120))
    check(TokenTexts(make())(ids), len(ids))


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_ids_that_are_text_have_their_own_bytes(make, data):
    """Also where the tokenizer would have chosen other ids, or a text begins or ends amid a character."""
    texts = TokenTexts(make())
    pieces = data.draw(st.lists(st.sampled_from([" went", "é", "😀", "<s>", "x", "你", "\n", " "]), max_size=8))
    ids = [i for piece in pieces for i in ids_of(make(), piece)]
    cut = data.draw(st.integers(0, len(ids)))
    for part in (ids[:cut], ids[cut:]):
        found = texts._by_bytes(part)
        assert found in (None, texts._by_decoding(part))
        whole = "\N{REPLACEMENT CHARACTER}" not in make().decode(part)
        assert found is not None or not whole


def test_a_tokenizer_of_an_unknown_kind_is_asked_to_encode():
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "he": 1, "went": 2, "##ing": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    texts = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"))
    assert texts._by_bytes([1, 2, 3]) is None
    assert texts([1, 2, 3]).text == "he wenting"
    assert texts([1, 2, 3]).starts == [0, 2, 7, 10]


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
