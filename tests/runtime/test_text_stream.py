"""Text token by token: whole characters, nothing of a stop text, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.runtime.serve.text_stream import TextStream
from tests.tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def decode(ids: list[int]) -> str:
    return TOKENIZER.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def streamed(ids: list[int], *stop: str) -> list[str]:
    stream = TextStream(decode, stop)
    return [*map(stream.push, ids), stream.finish()]


@given(st.lists(st.integers(0, 511), max_size=40))
def test_the_pieces_of_any_tokens_are_their_text(ids: list[int]) -> None:
    assert "".join(streamed(ids)) == decode(ids)


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_no_piece_of_real_text_holds_half_a_character(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    pieces = streamed(ids)
    assert "".join(pieces) == decode(ids)
    if "�" not in text:
        assert not any("�" in piece for piece in pieces)


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_text_ends_before_the_first_stop_text(text: str, stop: list[str]) -> None:
    stream = TextStream(lambda ids: "".join(map(chr, ids)), stop)
    given_out = ""
    for character in text:
        given_out += stream.push(ord(character))
        assert not any(s in given_out for s in stop)
    given_out += stream.finish()
    cut = min((text.find(s) for s in stop if s in text), default=None)
    assert stream.stopped == (cut is not None)
    if cut is None:
        assert given_out == text
    else:
        # A stop text is seen when it is complete: one that began earlier but ends later does not count.
        seen = min(text.find(s) + len(s) for s in stop if s in text)
        assert given_out == text[: min(text[:seen].find(s) for s in stop if s in text[:seen])]


@pytest.mark.parametrize(
    ("text", "stop", "pieces"),
    [
        ("ab##c", "###", ["a", "b", "", "", "##c", ""]),
        ("ab###c", "###", ["a", "b", "", "", "", "", ""]),
        ("ab##", "###", ["a", "b", "", "", "##"]),
    ],
)
def test_what_may_become_a_stop_text_is_held_back(text: str, stop: str, pieces: list[str]) -> None:
    stream = TextStream(lambda ids: "".join(map(chr, ids)), [stop])
    assert [*(stream.push(ord(c)) for c in text), stream.finish()] == pieces


def test_a_character_of_several_tokens_comes_whole() -> None:
    ids = TOKENIZER("é🙂", add_special_tokens=False)["input_ids"]
    assert len(ids) == 6
    assert streamed(ids) == ["", "é", "", "", "", "🙂", ""]
    assert streamed(ids[:-1])[-1] == "�"
