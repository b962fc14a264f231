"""Small edits to a text: what turns a cached document into a near-duplicate of itself."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_SENTENCE = re.compile(r"[A-Z][^.!?]{40,}?[.!?](?=\s)")
_WORD = re.compile(r"(?<=[a-z,] )[a-z]{5,}(?= [a-z])")
_REWORDINGS = (
    ("can", "is able to"), ("must", "has to"), ("may", "might"), ("when", "whenever"), ("if", "in case"),
    ("all", "every one of the"), ("also", "in addition"), ("used", "employed"), ("which", "that"), ("are", "will be"),
    ("is", "will be"), ("the", "that"),
)  # fmt: skip
_INSERTED = (
    "Readers who know this already may go on to the next part.",
    "An earlier version of this text put it differently.",
    "The following has been checked by the editors.",
)


@dataclass(frozen=True, slots=True)
class Edit:
    """An edited text and the kind of edit: ``number``, ``word``, ``reworded`` or ``inserted``."""

    kind: str
    text: str


def edit(text: str, kind: str, rng: random.Random) -> Edit | None:
    """Return ``text`` with one edit of this kind, or None if it offers no place for it."""
    edited = _EDITS[kind](text, rng)
    return None if edited is None or edited == text else Edit(kind, edited)


def any_edit(text: str, rng: random.Random) -> Edit | None:
    """Return ``text`` with one edit of a random kind; None if it offers no place for any."""
    kinds = rng.sample(KINDS, len(KINDS))
    return next((made for kind in kinds if (made := edit(text, kind, rng)) is not None), None)


def _number(text: str, rng: random.Random) -> str | None:
    place = _place(_NUMBER, text, rng)
    if place is None:
        return None
    value = int(place.group())
    return _replaced(text, place, str(rng.randrange(value + 2, value + 12)))


def _word(text: str, rng: random.Random) -> str | None:
    place = _place(_WORD, text, rng)
    if place is None:
        return None
    others = sorted({m.group() for m in _WORD.finditer(text)} - {place.group()})
    return _replaced(text, place, rng.choice(others)) if others else None


def _reworded(text: str, rng: random.Random) -> str | None:
    sentences = list(_SENTENCE.finditer(text))
    for sentence in rng.sample(sentences, len(sentences)):
        new, changes = sentence.group(), 0
        for old, other in _REWORDINGS:
            new, count = re.subn(rf"(?<= ){old}(?= )", other, new, count=1)
            changes += count
            if changes == 2:
                return _replaced(text, sentence, new)
    return None


def _inserted(text: str, rng: random.Random) -> str | None:
    place = _place(_SENTENCE, text, rng)
    return None if place is None else _replaced(text, place, f"{place.group()} {rng.choice(_INSERTED)}")


def _place(pattern: re.Pattern[str], text: str, rng: random.Random) -> re.Match[str] | None:
    places = list(pattern.finditer(text))
    return rng.choice(places) if places else None


def _replaced(text: str, place: re.Match[str], new: str) -> str:
    return text[: place.start()] + new + text[place.end() :]


_EDITS: dict[str, Callable[[str, random.Random], str | None]] = {
    "number": _number,
    "word": _word,
    "reworded": _reworded,
    "inserted": _inserted,
}
KINDS = tuple(_EDITS)
