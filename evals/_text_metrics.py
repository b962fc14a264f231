"""Scores of an answer against reference answers: containment, exact match, token F1, ROUGE-L.

Texts are lower-cased, without punctuation and, in English, without articles, as is usual for SQuAD. Scripts written
without spaces are compared character by character.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

_ARTICLES = frozenset({"a", "an", "the"})
# Han, kana and Hangul syllables are tokens of their own.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def words(text: str) -> list[str]:
    """Return the tokens that are compared."""
    found = _TOKEN.findall(unicodedata.normalize("NFKC", text).lower())
    return [word for word in found if word not in _ARTICLES]


def containment(answer: str, reference: str) -> float:
    """Return 1.0 if the reference's words stand in the answer, one after the other."""
    inside, wanted = words(answer), words(reference)
    starts = range(len(inside) - len(wanted) + 1)
    return float(bool(wanted) and any(inside[i : i + len(wanted)] == wanted for i in starts))


def exact_match(answer: str, reference: str) -> float:
    """Return 1.0 if both have the same words in the same order."""
    return float(words(answer) == words(reference))


def token_f1(answer: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall of the answer's words, order aside."""
    ours, theirs = words(answer), words(reference)
    return _f1((Counter(ours) & Counter(theirs)).total(), len(ours), len(theirs))


def rouge_l(answer: str, reference: str) -> float:
    """Return the F1 of the longest common subsequence of words (Lin 2004, with equal weights)."""
    ours, theirs = words(answer), words(reference)
    return _f1(_common_subsequence(ours, theirs), len(ours), len(theirs))


def scores(answer: str, references: Sequence[str]) -> dict[str, float]:
    """Return every score, each against the reference that suits it best."""
    return {name: max(score(answer, each) for each in references) for name, score in _SCORES.items()}


_SCORES: dict[str, Callable[[str, str], float]] = {
    "containment": containment,
    "exact_match": exact_match,
    "token_f1": token_f1,
    "rouge_l": rouge_l,
}


def _f1(common: int, ours: int, theirs: int) -> float:
    return 2 * common / (ours + theirs) if common else float(ours == theirs == 0)


def _common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    row = [0] * (len(right) + 1)
    for word in left:
        diagonal = 0
        for j, other in enumerate(right, 1):
            diagonal, row[j] = row[j], diagonal + 1 if word == other else max(row[j], row[j - 1])
    return row[-1]
