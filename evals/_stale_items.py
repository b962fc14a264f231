"""Near-duplicate documents: real paragraphs with one inserted fact, in an old and a new version."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from evals._stale_score import contains
from evals._stale_templates import KINDS, TEMPLATES, Template
from kvboost.errors import InputError

_SENTENCE_END = {"en": re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])"), "zh": re.compile(r"(?<=[。！？])(?![”』」])")}
_SPACE = {"en": " ", "zh": ""}
_TRIES = 200

Size = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Item:
    """One question about a fact that has changed.

    Attributes
    ----------
    old_document, new_document
        The two versions; they differ in the value alone.
    old_forms, new_forms
        Wordings that count as the old and as the new value; the first is the one in the document.
    prefix
        Forced beginning of an answer; the value follows after ``space``.
    fact
        The sentence that was changed, as the new version has it.
    """

    language: str
    kind: str
    old_document: str
    new_document: str
    question: str
    prefix: str
    old_forms: tuple[str, ...]
    new_forms: tuple[str, ...]
    fact: str

    @property
    def space(self) -> str:
        """What stands between words of this language."""
        return _SPACE[self.language]


def make_items(
    language: str, count: int, paragraphs: Sequence[str], size: Size, target_size: int, rng: random.Random
) -> Iterator[Item]:
    """Yield ``count`` items, the kinds and the templates of a kind in turn.

    Parameters
    ----------
    paragraphs
        Prose of that language to put the fact into.
    size, target_size
        Measures a text, and how large a document should be at least.
    """
    kinds = [[t for t in TEMPLATES[language] if t.kind == kind] for kind in KINDS]
    for templates in kinds:
        rng.shuffle(templates)
    for number in range(count):
        templates = kinds[number % len(kinds)]
        yield make_item(templates[number // len(kinds) % len(templates)], language, paragraphs, size, target_size, rng)


def make_item(
    template: Template, language: str, paragraphs: Sequence[str], size: Size, target_size: int, rng: random.Random
) -> Item:
    """Draw two values and a document, and put the fact into it at a random place.

    Raises
    ------
    InputError
        If no paragraphs were found that are long enough and free of both values.
    """
    old, new = draw_values(template, rng)
    for _ in range(_TRIES):
        chosen = _draw_paragraphs(paragraphs, size, target_size, rng)
        if not contains("\n".join(chosen), (old, new)):
            break
    else:
        raise InputError(f"no {language} paragraphs are free of the values {old!r} and {new!r}; give more text")
    at, gap = rng.random(), rng.random()
    facts = [template.fact.format(value) for value in (old, new)]
    old_document, new_document = (place(chosen, fact, template.later, language, at, gap) for fact in facts)
    return Item(
        language=language,
        kind=template.kind,
        old_document=old_document,
        new_document=new_document,
        question=template.question,
        prefix=template.prefix,
        old_forms=template.values.forms(old),
        new_forms=template.values.forms(new),
        fact=facts[1],
    )


def draw_values(template: Template, rng: random.Random) -> tuple[str, str]:
    """Return an old and a new value; the first of the possible kinds of change is drawn half of the time."""
    old = rng.choice(template.values.choices)
    first, *others = template.values.changes(old)
    group = rng.choice(others) if others and rng.random() < 0.5 else first
    return old, rng.choice(group)


def place(paragraphs: Sequence[str], fact: str, later: str, language: str, at: float, gap: float) -> str:
    """Return the document with ``fact`` after a sentence of its first two thirds, and ``later`` further down.

    ``at`` and ``gap`` in ``[0, 1)`` say after which sentence, and how much further down.
    """
    parts = [[s for s in _SENTENCE_END[language].split(paragraph) if s] for paragraph in paragraphs]
    places = [(p, s) for p, own in enumerate(parts) for s in range(1, len(own) + 1)]
    chosen = int(at * max(len(places) * 2 // 3, 1))
    inserted = {places[chosen]: [fact]}
    if later:
        below = places[chosen + 1 :] or [places[chosen]]
        inserted.setdefault(below[int(gap * len(below))], []).append(later)
    return "\n\n".join(
        _SPACE[language].join(s for i, own in enumerate(sentences, 1) for s in (own, *inserted.get((p, i), ())))
        for p, sentences in enumerate(parts)
    )


def _draw_paragraphs(paragraphs: Sequence[str], size: Size, target_size: int, rng: random.Random) -> list[str]:
    chosen: list[str] = []
    total = 0
    for paragraph in rng.sample(paragraphs, len(paragraphs)):
        chosen.append(paragraph)
        total += size(paragraph)
        if total >= target_size:
            break
    return chosen
