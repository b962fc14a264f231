"""Answer scores, on cases worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals._text_metrics import containment, exact_match, rouge_l, scores, token_f1, words


def test_words_drop_case_punctuation_and_articles() -> None:
    assert words("The Cat, a cat — and AN ox!") == ["cat", "cat", "and", "ox"]
    assert words("生命数为 308。") == ["生", "命", "数", "为", "308"]


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("It was 308 points.", "308", 1.0),
        ("It was 3080 points.", "308", 0.0),
        ("in the year of our lord", "year our", 0.0),
        ("他是踢爆的。", "踢爆", 1.0),
        ("anything", "", 0.0),
    ],
)
def test_containment_is_of_whole_words_in_order(answer: str, reference: str, expected: float) -> None:
    assert containment(answer, reference) == expected


def test_exact_match_ignores_only_what_words_ignore() -> None:
    assert exact_match("The Panthers.", "panthers") == 1.0
    assert exact_match("Panthers won", "panthers") == 0.0


def test_token_f1_counts_repeated_words_once_each() -> None:
    # 2 of 3 answer words are right, 2 of 4 reference words found: 2 * 2 / (3 + 4)
    assert token_f1("red red blue", "red green blue black") == pytest.approx(4 / 7)
    assert token_f1("one two", "three") == 0.0


def test_rouge_l_is_the_longest_common_subsequence() -> None:
    # "police killed gunman" against "police kill gunman": the subsequence has 2 words of 3 and 3
    assert rouge_l("police killed gunman", "police kill gunman") == pytest.approx(2 / 3)
    assert rouge_l("gunman police", "police gunman") == pytest.approx(1 / 2)


def test_scores_take_the_best_reference() -> None:
    assert scores("Exeter College", ["Oxford", "Exeter College"])["exact_match"] == 1.0


@given(st.text("abc ", max_size=30), st.text("abc ", max_size=30))
def test_scores_lie_between_zero_and_one_and_are_one_for_equal_texts(left: str, right: str) -> None:
    for value in scores(left, [right]).values():
        assert 0.0 <= value <= 1.0
    assert token_f1(left, left) == exact_match(left, left) == rouge_l(left, left) == 1.0
    assert rouge_l(left, right) <= token_f1(left, right) + 1e-9
