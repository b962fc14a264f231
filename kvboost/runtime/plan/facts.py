"""Does a wording change touch a fact? If so, the whole sentence is recomputed, not just the differing tokens.

K/V after a changed number, negation or name still carry the old one. The test errs towards yes: a needless yes
costs a sentence of recomputation, a wrong no gives a stale answer. So a changed word is harmless only where it is known
to be: in Latin letters, in a text that reads as a language whose words for facts are listed (``fact_words.py``), or
one of few Chinese particles. Anywhere else every changed word counts.

What that costs, as the share of the tokens of edited chunks that the similar tier reuses (versions of httpx's
documentation, 41 pairs / English passages with one word changed, 120 / with a phrase reworded, 78):

========================================== ===== ===== =====
every equal token, no rule                 .79   .96   .90
English words only, whatever the language  .40   .79   .77
this rule                                  .39   .76   .77
every changed word counts                  .32   .04   .05
========================================== ===== ===== =====

So a text in an unknown language keeps most of what real edits leave, and of one-word edits next to nothing: these have
one sentence in a chunk.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection
from itertools import chain

from kvboost.runtime.plan.fact_words import COMMON_IN, ELSEWHERE, LANGUAGES, OTHERS

MIN_COMMON = 0.2
"""Share of a text's words that must be among the commonest of a language for the text to read as that language."""
CLOSE = 0.6
"""Share of the likeliest language's common words from which another is as good a guess."""

_NEGATING_PREFIX = re.compile(r"(?:un|non|dis|mis|anti|counter)-?\w{3,}")
_STEM_PREFIXES = ("in", "im", "il", "ir", "a", "de", "ab", "un", "miss", "on", "o", "u", "des", "dés", "dé", "mé")
_STEM_SUFFIXES = ("less",)
# Chinese particles, pronouns of no content and conjunctions: the only characters without case that may differ.
_CHINESE_FUNCTION = frozenset("的地得了着过吗呢吧啊呀嘛么啦哦和与及且而也就还又是在于将之其这那此该")
_LATIN = re.compile(r"[A-Za-zÀ-ÖØ-öø-ʯḀ-ỿ]+")
_WORD = re.compile(r"[^\W_](?:[\w’'./:@,+-]*\w)?", re.UNICODE)
_DIGITS = re.compile(r"\d+(?:[.,:/’'\s-]?\d+)*")
_SIGN = re.compile(r"(?<!\w)[-−+±](?=\s*[\d.])|[%‰°$€£¥₹₩#<>≤≥=≠¬√½¼¾⅓⅔]|(?<=\d)\s*[-–]\s*(?=\d)")
# Letters, and the vowel signs that go with them.
_LETTERS = ("Lu", "Ll", "Lt", "Lo", "Lm", "Mc", "Mn")
_IDENTIFIER = re.compile(r"\w[_@/\\]\w|\w\.\w|\d[^\W\d_]|[^\W\d_]\d|[a-z][A-Z]")


def languages_of(text: str) -> frozenset[str]:
    """Return the codes of the languages that ``text`` reads as, of those whose words for facts are listed.

    More than one where they are close, such as Danish and Norwegian; none where another language is as likely, or
    where too few words say anything: names, code, a short list.
    """
    words = [part for word in _words(text) for part in re.split(r"['-]", word.casefold())]
    spoken = Counter(chain.from_iterable(COMMON_IN.get(word, ()) for word in words))
    shares = {name: count / len(words) for name, count in spoken.items()}
    likeliest = max(shares.values(), default=0.0)
    if likeliest < MIN_COMMON or any(shares.get(name, 0.0) >= likeliest for name in OTHERS):
        return frozenset()
    return frozenset(name for name in LANGUAGES if shares.get(name, 0.0) >= max(MIN_COMMON, CLOSE * likeliest))


def changes_fact(before: str, after: str, languages: Collection[str]) -> bool:
    """Whether replacing ``before`` by ``after`` changes a number, a negation or a name.

    Numbers are digits of any script, number words, quantities, units, dates, signs and currencies. A name is a
    capitalised word that is no common word, an identifier, or any word in other than Latin letters.

    Parameters
    ----------
    before, after
        The differing words, whole words of both texts; either may be empty.
    languages
        What the text around them reads as, see :func:`languages_of`; where it is none, any other word is a change.
    """
    old, new = (unicodedata.normalize("NFKC", text) for text in (before, after))
    if old == new:
        return False
    if _numbers(old) != _numbers(new):
        return True
    old_words, new_words = _words(old), _words(new)
    if not languages and _LATIN.findall(old.casefold()) != _LATIN.findall(new.casefold()):
        return True
    return (
        _listed(old_words, languages) != _listed(new_words, languages)
        or _negated_by_affix(old_words, new_words)
        or _names(old_words, languages) != _names(new_words, languages)
        or _other_letters(old) != _other_letters(new)
    )


def _numbers(text: str) -> list[str]:
    """Return digits, with their separators, and signs, in order; digits of any script as ASCII."""
    found = [(match.start(), _ascii_digits(match.group())) for match in _DIGITS.finditer(text)]
    found += [(match.start(), match.group().strip()) for match in _SIGN.finditer(text)]
    found += [(i, char) for i, char in enumerate(text) if not char.isdigit() and char.isnumeric()]
    return [number for _, number in sorted(found)]


def _ascii_digits(text: str) -> str:
    return "".join(str(unicodedata.digit(char)) if char.isdigit() else char for char in text)


def _words(text: str) -> list[str]:
    return [word.replace("’", "'") for word in _WORD.findall(text)]


def _listed(words: list[str], languages: Collection[str]) -> list[str]:
    """Return the words that count, measure, date or negate, in order."""
    patterns = [facts for name in languages or LANGUAGES if (facts := LANGUAGES[name].facts)] + [ELSEWHERE]
    found = []
    for word in words:
        for part in re.split(r"['-/,.:]", word.casefold().replace("n't", "-not")):
            if any(pattern.fullmatch(part) for pattern in patterns):
                found.append(part)
    return found


def _negated_by_affix(old_words: list[str], new_words: list[str]) -> bool:
    """Whether a word that differs has a negating prefix, or is the other side's word with an affix of negation."""
    old, new = ({word.casefold() for word in words} for words in (old_words, new_words))
    differing = old ^ new
    for word in differing:
        if _NEGATING_PREFIX.fullmatch(word):
            return True
        stems = [word[len(prefix) :].lstrip("-") for prefix in _STEM_PREFIXES if word.startswith(prefix)]
        if any(stem in differing for stem in stems) or word.endswith(_STEM_SUFFIXES):
            return True
    return False


def _names(words: list[str], languages: Collection[str]) -> list[str]:
    common = set(chain.from_iterable(LANGUAGES[name].common for name in languages))
    return [word for word in words if _may_be_name(word, common)]


def _may_be_name(word: str, common: Collection[str]) -> bool:
    if _IDENTIFIER.search(word):
        return True
    if not any(char.isupper() or char.istitle() for char in word):
        return False
    return word.casefold().removesuffix("'s") not in common or (len(word) > 1 and word.isupper())


def _other_letters(text: str) -> list[str]:
    """Return the letters and vowel signs of other scripts than Latin that carry content, in order."""
    return [
        char
        for char in text.casefold()
        if unicodedata.category(char) in _LETTERS and not _LATIN.match(char) and char not in _CHINESE_FUNCTION
    ]
