"""Token diff between a similar donor and its target, and the rule on changed facts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from kvboost.runtime.plan.facts import changes_fact, languages_of
from kvboost.types import Span

Decode = Callable[[Sequence[int]], str]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_TOKENS_PER_CHARACTER = 4
# Signs that belong to what follows them without a space: "-5", "$5", "3.14", "don't", "a/b".
_BINDING = frozenset("-−–+±~<>≤≥=≠¬√$€£¥₹₩#@&.,:'’/\\_%°(")


@dataclass(frozen=True, slots=True)
class EqualRun:
    """Equal tokens: target offsets ``[start, end)``, lent from donor offset ``donor_start`` on."""

    start: int
    end: int
    donor_start: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a similar donor may lend to its target.

    Attributes
    ----------
    blocks
        Equal tokens, in order, outside of ``changed``.
    changed
        Sentences of the target in which a number, a negation or a name changed.
    """

    blocks: tuple[EqualRun, ...]
    changed: tuple[Span, ...]


def token_diff(
    donor_ids: Sequence[int], target_ids: Sequence[int], sentences: Sequence[Span], min_span: int, decode: Decode
) -> Comparison:
    """Diff two chunks.

    Where the differing words change a number, a negation or a name, the target's whole sentence around them
    is taken out: the donor's K/V of its other words still carry the old fact.

    Parameters
    ----------
    sentences
        Sentence spans as offsets within the target, covering it.
    min_span
        Shorter blocks are left out.
    """
    opcodes = SequenceMatcher(None, donor_ids, target_ids, autojunk=False).get_opcodes()
    changed = _changed(opcodes, donor_ids, target_ids, sentences, decode)
    blocks: list[EqualRun] = []
    for tag, i1, _, j1, j2 in opcodes:
        if tag == "equal":
            parts = subtract(Span(j1, j2), changed)
            blocks += [EqualRun(p.start, p.end, i1 + p.start - j1) for p in parts if len(p) >= min_span]
    return Comparison(tuple(blocks), tuple(changed))


class InOrder:
    """Disjoint spans in order; finds those that overlap another without looking at all."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._starts = [span.start for span in spans]
        self._ends = [span.end for span in spans]

    def overlapping(self, span: Span) -> Sequence[Span]:
        """Return the spans that have a position in common with ``span``, in order."""
        return self._spans[bisect_right(self._ends, span.start) : bisect_left(self._starts, span.end)]


def subtract(span: Span, others: Sequence[Span]) -> list[Span]:
    """Return what is left of ``span`` outside of ``others``, in order."""
    parts = [(span.start, span.end)]
    for other in others:
        parts = [
            piece
            for a, b in parts
            for piece in ((a, min(b, other.start)), (max(a, other.end), b))
            if piece[0] < piece[1]
        ]
    return [Span(a, b) for a, b in parts]


def _changed(
    opcodes: Sequence[tuple[str, int, int, int, int]],
    donor_ids: Sequence[int],
    target_ids: Sequence[int],
    sentences: Sequence[Span],
    decode: Decode,
) -> list[Span]:
    changed: list[Span] = []
    languages = languages_of(decode(target_ids))
    for tag, i1, i2, j1, j2 in opcodes:
        if tag == "equal":
            continue
        before = decode(widened(donor_ids, i1, i2, decode))
        after = decode(widened(target_ids, j1, j2, decode))
        if changes_fact(before, after, languages):
            # A pure deletion lies between two tokens: both its neighbours' sentences are affected.
            first, last = (j1, j2 - 1) if j2 > j1 else (max(j1 - 1, 0), j1)
            changed += [s for s in sentences if s.start <= last and s.end > first]
    return changed


def widened(ids: Sequence[int], start: int, end: int, decode: Decode) -> Sequence[int]:
    """Widen ``[start, end)`` to whole words, so that a changed word piece is judged as the word it is part of."""
    while 0 < start < len(ids) and _inside_word(ids, start, decode):
        start -= 1
    while start < end < len(ids) and _inside_word(ids, end, decode):
        end += 1
    return ids[start:end]


def _inside_word(ids: Sequence[int], position: int, decode: Decode) -> bool:
    """Whether a cut before ``position`` parts a word, a number and its sign, or the bytes of a character."""
    before = ""
    for start in range(position - 1, max(position - 1 - _MAX_TOKENS_PER_CHARACTER, -1), -1):
        before = decode(ids[start:position])
        if before and not before.endswith(_REPLACEMENT):
            # Decoded together, because some tokenizers drop the space of a word that is decoded alone.
            after = decode(ids[start : position + 1])[len(before) :]
            return (before[-1].isalnum() or before[-1] in _BINDING) and not after[:1].isspace()
    # A token without text, such as the one that begins a prompt, is no part of the word behind it.
    return bool(before)
