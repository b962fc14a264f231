"""Does an answer give the old value, the new one, both or neither?"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_SCRIPTS_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an answer says. An answer that says both is stale: a reader cannot tell which holds."""

    old: bool
    new: bool

    @property
    def stale(self) -> bool:
        """Whether the old value is given."""
        return self.old

    @property
    def both(self) -> bool:
        """Whether both values are given."""
        return self.old and self.new


def judge(answer: str, old: Sequence[str], new: Sequence[str]) -> Verdict:
    """Search an answer for the wordings of both values.

    A wording inside a longer one does not count ("allowed" in "not allowed"), nor does one inside a longer word
    or number ("15" in "150", "1.5" in "11.5"). Case, width of characters and kind of space do not matter.
    """
    text = _plain(answer)
    hits = [(m.start(), m.end(), side) for side, forms in enumerate((old, new)) for f in forms for m in _found(f, text)]
    free = [side for a, b, side in hits if not any(c <= a and b <= d and d - c > b - a for c, d, _ in hits)]
    return Verdict(0 in free, 1 in free)


def contains(text: str, forms: Sequence[str]) -> bool:
    """Whether any of the wordings stands in ``text`` as words or numbers of their own."""
    plain = _plain(text)
    return any(True for form in forms for _ in _found(form, plain))


def _found(form: str, text: str) -> list[re.Match[str]]:
    wanted = _plain(form)
    return [m for m in re.finditer(re.escape(wanted), text) if _stands_alone(text, m.start(), m.end())]


def _stands_alone(text: str, start: int, end: int) -> bool:
    before, after = text[:start], text[end:]
    if (before and _one_word(before[-1], text[start])) or (after and _one_word(text[end - 1], after[0])):
        return False
    # A decimal point or a thousands separator goes on with the number.
    if text[start].isdigit() and re.search(r"\d[.,]$", before):
        return False
    return not (text[end - 1].isdigit() and re.match(r"[.,]\d", after))


def _one_word(left: str, right: str) -> bool:
    """Whether two neighbouring characters belong to one word or number.

    Scripts without spaces never do, nor does a unit that is written onto its number ("34MB").
    """
    if left.isdigit() and right.isalpha():
        return False
    return all(c.isalnum() and not _without_spaces(c) for c in (left, right))


def _without_spaces(char: str) -> bool:
    return unicodedata.name(char, "").startswith(_SCRIPTS_WITHOUT_SPACES)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).casefold().strip()
