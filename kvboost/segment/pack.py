"""Packing of sentences into chunks of ``min_tokens`` to ``max_tokens``.

Everything here reads left to right and looks at most one unit ahead, and every paragraph is packed from its own
start. So an edit in one paragraph leaves the chunks of the others alone, and text appended to a prompt changes
its last chunk at most. (One chunk more where the appended text goes on in the middle of a word, or makes
something else of the last line, such as a table row.)
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvboost.errors import InputError
from kvboost.segment.offsets import TokenText
from kvboost.segment.sentences import clause_ends, word_ends


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bounds of a chunk in tokens, both inclusive."""

    min_tokens: int = 16
    max_tokens: int = 64

    def __post_init__(self) -> None:
        for name in ("min_tokens", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} {value!r} must be a whole number of at least 1")
        if self.min_tokens > self.max_tokens:
            raise InputError(f"min_tokens {self.min_tokens} must not be larger than max_tokens {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A block of the prompt in tokens.

    Attributes
    ----------
    start
        First token.
    unit_ends
        Ends of its sentences, list items, rows or lines, increasing; the last is the end of the paragraph.
    by_line
        Whether units must not be cut while they fit a chunk.
    breaks
        The unit ends at which a chunk may close before it is full; None: at all of them.
    marker
        Whether it is a chat marker, after which a new chunk starts.
    """

    start: int
    unit_ends: tuple[int, ...]
    by_line: bool = False
    breaks: frozenset[int] | None = None
    marker: bool = False

    @property
    def end(self) -> int:
        """One past the last token."""
        return self.unit_ends[-1]

    def __len__(self) -> int:
        return self.end - self.start


_WORD = re.compile(r"\s*\S+\s")

Cut = Callable[[int], int]


def pack(paragraphs: Iterable[Paragraph], sizes: Sizes, cut: Cut) -> list[int]:
    """Return the ends of the chunks of all paragraphs.

    A paragraph shorter than ``min_tokens`` is packed with its short neighbours as if they were the sentences of
    one paragraph; what is left of such a run joins the first chunk of the paragraph after it where that fits
    (a heading goes with its text), and stands alone where not. A chat marker ends such a run, and never joins the
    text after it: a document is cut alike wherever it stands.

    Parameters
    ----------
    paragraphs
        Covering the prompt without gaps.
    cut
        Given the first token of a chunk that would be too long, returns where to cut it.
    """
    ends: list[int] = []
    run: list[int] = []
    at = 0
    after_marker = False
    for paragraph in paragraphs:
        if after_marker and not paragraph.marker:
            _close(ends, at, run, sizes, cut)
            at = ends[-1]
        after_marker = paragraph.marker
        if len(paragraph) < sizes.min_tokens:
            run.append(paragraph.end)
            continue
        ends += _pack_units(Paragraph(at, tuple(run), by_line=True), sizes, cut)
        run.clear()
        at = ends[-1] if ends else 0
        ends += _joined(at, paragraph, _pack_paragraph(paragraph, sizes, cut), sizes)
        at = paragraph.end
    _close(ends, at, run, sizes, cut)
    return ends


def _close(ends: list[int], at: int, run: list[int], sizes: Sizes, cut: Cut) -> None:
    """Append the chunks of a run of short paragraphs and its rest, and empty it."""
    if run:
        ends += _pack_units(Paragraph(at, tuple(run), by_line=True), sizes, cut)
        if not ends or ends[-1] < run[-1]:
            ends.append(run[-1])
        run.clear()


def _joined(at: int, paragraph: Paragraph, own: list[int], sizes: Sizes) -> list[int]:
    """Return the chunks of a paragraph and of what is left before it, from token ``at``.

    Whether they join is decided on the paragraph's first sentences of at least ``min_tokens``, which can only grow
    when text is appended: so what once stood alone always does.
    """
    if at == paragraph.start:
        return own
    first = next(end for end in paragraph.unit_ends if end - paragraph.start >= sizes.min_tokens)
    if first - at > sizes.max_tokens:
        return [paragraph.start, *own]
    if own[0] - at > sizes.max_tokens:
        return [first, *own]
    return own


def _pack_paragraph(paragraph: Paragraph, sizes: Sizes, cut: Cut) -> list[int]:
    """Pack a paragraph of at least ``min_tokens``; a short rest joins the chunk before it where that fits."""
    ends = _pack_units(paragraph, sizes, cut)
    at = ends[-1] if ends else paragraph.start
    if at == paragraph.end:
        return ends
    before = ends[-2] if len(ends) > 1 else paragraph.start
    if ends and paragraph.end - at < sizes.min_tokens and paragraph.end - before <= sizes.max_tokens:
        ends.pop()
    return [*ends, paragraph.end]


def _pack_units(paragraph: Paragraph, sizes: Sizes, cut: Cut) -> list[int]:
    """Return the ends of the chunks that are closed; a rest after the last of them is left open."""
    ends: list[int] = []
    at = before = paragraph.start
    for end in paragraph.unit_ends:
        if end - at > sizes.max_tokens and before > at:
            whole = paragraph.by_line and end - before <= sizes.max_tokens
            if whole or before - at >= sizes.min_tokens:
                ends.append(before)
                at = before
        while end - at > sizes.max_tokens:
            at = cut(at)
            ends.append(at)
        if end - at >= sizes.min_tokens and (paragraph.breaks is None or end in paragraph.breaks):
            ends.append(end)
            at = end
        before = end
    return ends


class Cutter:
    """Finds where a chunk ends that no sentence end fits: at a clause mark, else between words, else by count.

    Looks only at the ``max_tokens`` tokens that the chunk can have and the word after them.
    """

    def __init__(self, tokens: TokenText, sizes: Sizes) -> None:
        self._text = tokens.text
        self._starts = tokens.starts
        self._sizes = sizes

    def __call__(self, at: int) -> int:
        """Return the end of a chunk that starts at token ``at``; more than ``max_tokens`` must follow ``at``."""
        low, high = at + self._sizes.min_tokens, at + self._sizes.max_tokens
        window = self._window(at, high)
        clauses = self._tokens(at, high, clause_ends(window), len(window))
        if clauses and clauses[-1] >= low:
            return clauses[-1]
        words = self._tokens(at, high, word_ends(window), len(window))
        if words and (words[-1] >= low or self._word_fits(words[-1])):
            return words[-1]
        return self._by_count(low, high)

    def _window(self, at: int, high: int) -> str:
        return self._text[self._starts[at] : self._starts[min(high + 2, len(self._starts) - 1)]]

    def _tokens(self, at: int, high: int, ends: Sequence[int], edge: int) -> list[int]:
        """Map ends in the window to tokens; the window's own edge is no end."""
        first = self._starts[at]
        found = (bisect_left(self._starts, first + end, at) for end in ends if end < edge)
        return [token for token in found if at < token <= high]

    def _word_fits(self, start: int) -> bool:
        """Whether the word at token ``start`` ends within one chunk, so that it need not be cut (a URL)."""
        end = start + self._sizes.max_tokens
        if end >= len(self._starts) - 1:
            return True
        return _WORD.match(self._text, self._starts[start], self._starts[end] + 1) is not None

    def _by_count(self, low: int, high: int) -> int:
        end = high
        while end > low and self._starts[end] == self._starts[end - 1]:
            end -= 1  # tokens that share one character stay together
        return end
