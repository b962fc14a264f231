"""Token diff between a similar donor and its target, and the rule on changed facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from kvboost.runtime.facts import changes_fact
from kvboost.types import Span


@dataclass(frozen=True, slots=True)
class Block:
    """Equal tokens: target offsets ``[start, end)``, lent from donor offset ``donor_start`` on."""

    start: int
    end: int
    donor_start: int


def reusable_blocks(
    donor_ids: Sequence[int],
    target_ids: Sequence[int],
    sentences: Sequence[Span],
    min_span: int,
    decode: Callable[[Sequence[int]], str],
) -> list[Block]:
    """Return the equal blocks that may be lent.

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
    barred = _barred(opcodes, donor_ids, target_ids, sentences, decode)
    blocks: list[Block] = []
    for tag, i1, _, j1, j2 in opcodes:
        if tag == "equal":
            blocks += [Block(a, b, i1 + a - j1) for a, b in _subtract(j1, j2, barred) if b - a >= min_span]
    return blocks


def _barred(
    opcodes: Sequence[tuple[str, int, int, int, int]],
    donor_ids: Sequence[int],
    target_ids: Sequence[int],
    sentences: Sequence[Span],
    decode: Callable[[Sequence[int]], str],
) -> list[Span]:
    barred: list[Span] = []
    for tag, i1, i2, j1, j2 in opcodes:
        if tag == "equal":
            continue
        before = decode(_widened(donor_ids, i1, i2, decode))
        after = decode(_widened(target_ids, j1, j2, decode))
        if changes_fact(before, after):
            # A pure deletion lies between two tokens: both its neighbours' sentences are affected.
            first, last = (j1, j2 - 1) if j2 > j1 else (max(j1 - 1, 0), j1)
            barred += [s for s in sentences if s.start <= last and s.end > first]
    return barred


def _widened(ids: Sequence[int], start: int, end: int, decode: Callable[[Sequence[int]], str]) -> Sequence[int]:
    """Widen ``[start, end)`` to whole words, so that a changed word piece is judged as the word it is part of."""

    def inside_word(position: int) -> bool:
        before, after = decode(ids[position - 1 : position]), decode(ids[position : position + 1])
        return before[-1:].isalnum() and not after[:1].isspace()

    while 0 < start < len(ids) and inside_word(start):
        start -= 1
    while start < end < len(ids) and inside_word(end):
        end += 1
    return ids[start:end]


def _subtract(start: int, end: int, barred: Sequence[Span]) -> list[tuple[int, int]]:
    parts = [(start, end)]
    for bar in barred:
        parts = [
            piece for a, b in parts for piece in ((a, min(b, bar.start)), (max(a, bar.end), b)) if piece[0] < piece[1]
        ]
    return parts
