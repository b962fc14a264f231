"""Which wording changes must make the whole sentence be recomputed."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.runtime.plan.fact_words import LANGUAGES
from kvboost.runtime.plan.facts import changes_fact

FACTS = [
    # numbers
    ("5", "15"),
    ("2023", "2024"),
    ("3.14", "3.41"),
    ("1,000", "10,000"),
    ("5 of 7", "7 of 5"),
    ("", "3"),
    ("-3", "3"),
    ("$5", "€5"),
    ("5%", "5"),
    ("٣", "٤"),
    ("३", "४"),
    ("five", "fifteen"),
    ("twenty-one", "twenty-two"),
    ("third", "fourth"),
    ("twice", "once"),
    ("all", "some"),
    ("５", "６"),
    ("½", "¼"),
    # units
    ("kilometres", "miles"),
    ("5 kg", "5 lb"),
    # dates
    ("March", "April"),
    ("monday", "tuesday"),
    ("yesterday", "tomorrow"),
    ("am", "pm"),
    # negations
    ("", "not"),
    ("is", "isn't"),
    ("is", "isn’t"),
    ("can", "cannot"),
    ("covers", "never covers"),
    ("with", "without"),
    ("a", "no"),
    ("happy", "unhappy"),
    ("possible", "impossible"),
    ("legal", "illegal"),
    ("agree", "disagree"),
    ("careful", "careless"),
    ("nicht", ""),
    ("не", ""),
    # names
    ("Alice", "Bob"),
    ("Alice met Bob", "Bob met Alice"),
    ("the city", "Paris"),
    ("us", "US"),
    ("iPhone", "phone"),
    ("user_id", "user_name"),
    ("config.toml", "config.yaml"),
    ("Анна", "Иван"),
    # scripts without capitals
    ("张三", "李四"),
    ("是", "不是"),
    ("有", "没有"),
    ("五", "六"),
    ("三月", "四月"),
    ("北京", "上海"),
    ("東京", "大阪"),
    ("서울", "부산"),
    ("محمد", "أحمد"),
    ("राम", "श्याम"),
]

NO_FACTS = [
    ("", ""),
    ("quickly", "rapidly"),
    ("the", "a"),
    ("The", "This"),
    ("big house", "large building"),
    ("do not", "don't"),
    ("however,", "but"),
    ("5 red", "5 blue"),
    ("５", "5"),
    ("Paris is nice", "Paris seems pleasant"),
    ("information", "data"),
    ("的", "了"),
    ("", "也"),
]


@pytest.mark.parametrize(("before", "after"), FACTS)
@pytest.mark.parametrize("languages", [("en",), (), ("de", "en")], ids=["English", "unknown", "German or English"])
def test_a_changed_fact_is_seen_both_ways(before, after, languages):
    assert changes_fact(before, after, languages)
    assert changes_fact(after, before, languages)


@pytest.mark.parametrize(("before", "after"), NO_FACTS)
def test_other_wording_is_no_fact(before, after):
    assert not changes_fact(before, after, ("en",))
    assert not changes_fact(after, before, ("en",))


LANGUAGE_SETS = st.sets(st.sampled_from(sorted(LANGUAGES)), max_size=3)


@given(st.text(max_size=30), st.text(max_size=30), LANGUAGE_SETS)
def test_the_order_of_the_texts_does_not_matter(before, after, languages):
    assert changes_fact(before, after, languages) == changes_fact(after, before, languages)
    assert not changes_fact(before, before, languages)


@given(st.text(max_size=30), st.text(max_size=30), LANGUAGE_SETS)
def test_what_is_a_fact_in_a_known_language_is_one_in_an_unknown_language(before, after, languages):
    # The other way round a word may be one that two tables spell alike.
    assert changes_fact(before, after, ()) or not changes_fact(before, after, languages)


@given(st.text(alphabet=st.characters(categories=["Lu", "Ll", "Lo"]), min_size=1), LANGUAGE_SETS)
def test_in_other_than_latin_letters_every_word_is_a_fact(word, languages):
    if not any("LATIN" in unicodedata.name(char, "") for char in unicodedata.normalize("NFKC", word.casefold())):
        particles = all(changes_fact(char, "", ()) is False for char in word)
        assert changes_fact(word, "", languages) != particles


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_any_two_numbers_differ(a, b):
    assert changes_fact(f"costs {a} euros", f"costs {b} euros", ("en",)) == (a != b)
