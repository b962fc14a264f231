"""Text token by token: whole characters, nothing of a stop text, nothing lost."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
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


def cut(text: str, stop: list[str]) -> tuple[str, bool]:
    """Return the text up to the stop text that is complete first, and whether there is one: the plain definition."""
    for end in range(1, len(text) + 1):
        if found := [one for one in stop if text[:end].endswith(one)]:
            return text[: end - max(map(len, found))], True
    return text, False


def by_bytes(text: str, cuts: list[int]) -> list[bytes]:
    """Return the UTF-8 of ``text`` as tokens that end anywhere, also within a character."""
    raw = text.encode()
    ends = sorted({*(c % (len(raw) + 1) for c in cuts), len(raw)})
    return [raw[a:b] for a, b in zip([0, *ends], ends, strict=False)]


_TEXT = st.text("ab.\u00e9\u4e2d\U0001f600\ufffd", max_size=24)
_STOPS = st.lists(st.text("ab.\u00e9\u4e2d\U0001f600\ufffd", min_size=1, max_size=4), max_size=3)


@given(_TEXT, st.lists(st.integers(0, 200), max_size=40), _STOPS, st.integers(0, 3))
@example("b. \U0001f600", [3], [". "], 2)
def test_an_answer_ends_before_the_stop_text_that_is_complete_first(
    text: str, cuts: list[int], stop: list[str], missing: int
) -> None:
    tokens = by_bytes(text, cuts)
    if missing and tokens:
        tokens[-1] = tokens[-1][:-missing]  # the answer ends within a character
    stream = TextStream(lambda ids: b"".join(tokens[i] for i in ids).decode(errors="replace"), stop)
    given_out = ""
    for i in range(len(tokens)):
        given_out += stream.push(i)
        assert not any(one in given_out for one in stop)
    given_out += stream.finish()
    assert (given_out, stream.stopped) == cut(b"".join(tokens).decode(errors="replace"), stop)


@given(st.lists(st.sampled_from([b"\xf0", b"\x9f", b"\x98", b"\x80", b"a"]), max_size=80))
def test_bytes_that_are_no_text_are_neither_lost_nor_kept_for_ever(tokens: list[bytes]) -> None:
    longest = 0

    def counted(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return b"".join(tokens[i] for i in ids).decode(errors="replace")

    stream = TextStream(counted)
    pieces = [*map(stream.push, range(len(tokens))), stream.finish()]
    assert "".join(pieces) == b"".join(tokens).decode(errors="replace")
    assert longest <= 64


def test_a_stop_text_complete_before_half_a_character_ends_the_answer() -> None:
    ids = TOKENIZER("Done. \U0001f642", add_special_tokens=False)["input_ids"]
    for count in range(len(ids) - 3, len(ids) + 1):
        stream = TextStream(decode, [". "])
        text = "".join(map(stream.push, ids[:count])) + stream.finish()
        assert (text, stream.stopped) == cut(decode(ids[:count]), [". "])
    assert stream.stopped


def test_long_stop_texts_cost_a_step_a_character() -> None:
    decoded = 0

    def counted(ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return "a" * len(ids)

    stop = "a" * 1000 + "b"
    stream = TextStream(counted, [stop, "a" * 3000])
    began = time.process_time()
    given_out = [stream.push(0) for _ in range(2500)]
    assert time.process_time() - began < 20
    assert "".join(given_out) == ""
    assert decoded <= 10 * 2500
    assert len(stream.finish()) == 2500


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


def test_a_token_is_decoded_once_with_a_few_before_it() -> None:
    calls: list[int] = []

    def counted(ids: list[int]) -> str:
        calls.append(len(ids))
        return decode(ids)

    ids = TOKENIZER("The people went to the water and saw a boat there. " * 20, add_special_tokens=False)["input_ids"]
    stream = TextStream(counted)
    assert "".join([*map(stream.push, ids), stream.finish()]) == decode(ids)
    assert len(calls) <= 1.25 * len(ids)
    assert max(calls) <= 24
