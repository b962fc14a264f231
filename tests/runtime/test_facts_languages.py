"""Facts in many languages: numbers, dates and negations that change, and what a text is read as."""

from __future__ import annotations

from itertools import pairwise

import pytest
from babel.dates import get_day_names, get_month_names
from num2words import num2words

from kvboost.runtime.plan.diff import token_diff
from kvboost.runtime.plan.fact_words import LANGUAGES
from kvboost.runtime.plan.facts import changes_fact, languages_of
from kvboost.types import Span
from tests.runtime.human_rights import ARTICLE_1

NUMBERS = [*range(200), *range(200, 1100, 100), 1001, 2000, 2001, 10**4, 10**5, 10**6, 2 * 10**6, 10**9, 2 * 10**9]

# Two pairs each: a number or a quantity, a negation.
CHANGES = {
    "en": [("three", "four"), ("always", "never")],
    "de": [("zwei", "drei"), ("ein", "kein")],
    "fr": [("deux", "trois"), ("toujours", "jamais")],
    "es": [("veintidós", "veintitrés"), ("siempre", "nunca")],
    "it": [("otto", "nove"), ("", "non")],
    "pt": [("dois", "três"), ("", "não")],
    "nl": [("tweede", "derde"), ("een", "geen")],
    "sv": [("sjunde", "åttonde"), ("", "inte")],
    "da": [("halvtreds", "tres"), ("", "ikke")],
    "no": [("sytten", "atten"), ("alltid", "aldri")],
    "af": [("twee", "drie"), ("altyd", "nooit")],
    "ca": [("dos", "tres"), ("", "no")],
    "cs": [("dva", "tři"), ("", "není")],
    "cy": [("dau", "tri"), ("", "ddim")],
    "eo": [("du", "tri"), ("", "ne")],
    "et": [("kaks", "kolm"), ("", "ei")],
    "eu": [("bi", "hiru"), ("", "ez")],
    "fi": [("kahden", "kolmen"), ("on", "ei ole")],
    "ga": [("dhá", "trí"), ("", "ní")],
    "gl": [("dous", "tres"), ("", "non")],
    "hr": [("dva", "tri"), ("je", "nije")],
    "hu": [("kettő", "három"), ("van", "nincs")],
    "id": [("dua", "tiga"), ("", "tidak")],
    "is": [("tveir", "þrír"), ("", "ekki")],
    "la": [("duo", "tres"), ("semper", "numquam")],
    "lt": [("du", "trys"), ("yra", "nėra")],
    "lv": [("divi", "trīs"), ("ir", "nav")],
    "mt": [("tnejn", "tlieta"), ("", "mhux")],
    "pl": [("dwóch", "trzech"), ("", "nie")],
    "ro": [("doi", "trei"), ("", "nu")],
    "sk": [("dva", "tri"), ("je", "nie je")],
    "sl": [("dva", "tri"), ("je", "ni")],
    "sq": [("dy", "tre"), ("", "nuk")],
    "sw": [("mbili", "tatu"), ("ni", "si")],
    "tl": [("dalawa", "tatlo"), ("", "hindi")],
    "tr": [("iki", "üç"), ("var", "yok")],
    "vi": [("hai", "ba"), ("", "không")],
    "ru": [("два", "три"), ("двух", "трёх"), ("", "не"), ("есть", "нет")],
    "uk": [("два", "три"), ("", "не")],
    "el": [("δύο", "τρία"), ("", "δεν")],
    "zh": [("两", "三"), ("", "不"), ("都", "也")],
    "ja": [("二", "三"), ("ある", "ない")],
    "ko": [("둘", "셋"), ("있다", "없다")],
    "ar": [("اثنان", "ثلاثة"), ("", "لا")],
    "fa": [("دو", "سه"), ("است", "نیست")],
    "he": [("שניים", "שלושה"), ("", "לא")],
    "hi": [("दो", "तीन"), ("", "नहीं")],
    "th": [("สอง", "สาม"), ("", "ไม่")],
    "ka": [("ორი", "სამი"), ("", "არ")],
    "hy": [("երկու", "երեք"), ("", "չի")],
}

REWORDED = {
    "en": ("quickly", "rapidly"),
    "de": ("schnell", "rasch"),
    "fr": ("rapidement", "vite"),
    "es": ("rápido", "veloz"),
    "it": ("rapido", "veloce"),
    "pt": ("rápido", "veloz"),
    "nl": ("snel", "vlug"),
    "sv": ("snabb", "rask"),
    "da": ("hurtig", "rask"),
    "no": ("rask", "kjapp"),
}


@pytest.mark.parametrize("code", ARTICLE_1)
def test_a_text_is_read_as_its_language_or_as_none(code: str) -> None:
    read = languages_of(ARTICLE_1[code])
    assert code in read if code in LANGUAGES else not read
    words = ARTICLE_1[code].split()
    for start in range(len(words) - 11):
        part = languages_of(" ".join(words[start : start + 12]))
        assert not part or code in part


@pytest.mark.parametrize("text", ["", "Paris", "x = f(y[0])", "| 12 | abc |", "1. foo\n2. bar", "你好"])
def test_what_says_too_little_is_read_as_none(text: str) -> None:
    assert not languages_of(text)


@pytest.mark.parametrize(
    ("code", "before", "after"), [(code, *pair) for code, pairs in CHANGES.items() for pair in pairs]
)
def test_a_changed_fact_is_seen_in_its_language_and_where_it_is_quoted(code: str, before: str, after: str) -> None:
    for languages in (languages_of(ARTICLE_1[code]), ()):
        assert changes_fact(before, after, languages)
        assert changes_fact(after, before, languages)


@pytest.mark.parametrize(
    ("before", "after"),
    [("zwei", "drei"), ("deux", "trois"), ("два", "три"), ("", "tidak"), ("", "không"), ("", "nicht"), ("", "не")],
)
def test_a_foreign_fact_is_seen_in_an_english_text(before: str, after: str) -> None:
    assert changes_fact(before, after, ("en",))


@pytest.mark.parametrize("code", REWORDED)
def test_other_wording_is_no_fact_where_the_language_is_known(code: str) -> None:
    assert not changes_fact(*REWORDED[code], languages_of(ARTICLE_1[code]))
    assert changes_fact(*REWORDED[code], ())


@pytest.mark.parametrize("kind", ["cardinal", "ordinal"])
@pytest.mark.parametrize("code", LANGUAGES)
def test_numbers_in_words_are_facts(code: str, kind: str) -> None:
    words = [num2words(n, lang=code, to=kind) for n in NUMBERS[kind == "ordinal" :]]
    for near in (words[1:], words[7:], words[10:]):
        for before, after in zip(words, near, strict=False):
            assert changes_fact(before, after, (code,)), (before, after)
    for word in words:
        assert changes_fact(word, "", (code,)), word


@pytest.mark.parametrize("width", ["wide", "abbreviated"])
@pytest.mark.parametrize("code", LANGUAGES)
def test_months_and_weekdays_are_facts(code: str, width: str) -> None:
    locale = "nb" if code == "no" else code
    for context in ("format", "stand-alone"):
        for names in (get_month_names(width, context, locale), get_day_names(width, context, locale)):
            long = [name for name in names.values() if len(name.rstrip(".")) > 2]
            for name in long:
                assert changes_fact(name, "", (code,)), name
            for before, after in pairwise(long):
                assert changes_fact(before, after, (code,))


@pytest.mark.parametrize("code", ["en", "de", "fr", "ru", "id", "vi", "pl", "zh"])
def test_the_whole_sentence_is_computed_where_a_fact_changed(code: str) -> None:
    before, after = CHANGES[code][0]
    first = ARTICLE_1[code] + " "
    old, new = (f"{first}{word} {ARTICLE_1[code]}" for word in (before, after))
    sentences = [Span(0, len(first)), Span(len(first), len(new))]

    def decode(ids: object) -> str:
        return "".join(chr(i) for i in ids)  # type: ignore[attr-defined]

    found = token_diff([ord(c) for c in old], [ord(c) for c in new], sentences, 4, decode)
    assert set(found.changed) == {sentences[1]}
    assert [(run.start, run.end) for run in found.blocks] == [(0, len(first))]
