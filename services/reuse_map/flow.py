"""Where the tokens of a map go on a page: text that flows and wraps, each token a cell of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .ansi import printable
from .page import Passage, ReuseMap

Measure = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class Cell:
    """One token, or the part of it that fits on a line: ``width`` pixels from ``x`` on line ``line``."""

    token: int
    text: str
    x: float
    line: int
    width: float


@dataclass(frozen=True, slots=True)
class Note:
    """A line of its own that stands for tokens which are not shown."""

    passage: Passage
    line: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Cells and notes in order, and the number of lines they take."""

    cells: tuple[Cell, ...]
    notes: tuple[Note, ...]
    lines: int


def flow(page: ReuseMap, measure: Measure, width: float) -> Flow:
    """Lay the shown tokens of ``page`` out on lines of ``width`` pixels; ``measure`` gives a text's width.

    A single line break is drawn as a space, and an empty line as a space and a new line, so that wrapped source
    text fills the page. Words stay whole although tokens end inside them.
    """
    pen = _Pen(measure, width)
    notes: list[Note] = []
    for passage in page.passages():
        if passage.shown:
            for position in range(passage.start, passage.end):
                pen.write(position, page.tokens[position].text)
        else:
            pen.new_line()
            notes.append(Note(passage, pen.line))
            pen.new_line(even_if_empty=True)
    return Flow(tuple(pen.cells), tuple(notes), pen.line + 1)


class _Pen:
    """Writes tokens from left to right, line by line."""

    def __init__(self, measure: Measure, width: float) -> None:
        self.cells: list[Cell] = []
        self.line = 0
        self._x = 0.0
        self._measure = measure
        self._width = width
        self._after_break = False
        self._nothing = measure(" ") * 0.6

    def write(self, token: int, text: str) -> None:
        """Write one token; every token leaves at least one cell."""
        if not text:
            self._put(token, "", self._nothing)
            return
        parts = text.expandtabs(4).split("\n")
        for i, part in enumerate(parts):
            if part:
                self._put_text(token, printable(part))
                self._after_break = self._after_break and not part.strip()
            if i < len(parts) - 1:
                self._break(token)

    def new_line(self, even_if_empty: bool = False) -> None:
        """Go to the start of the next line, unless this one is empty."""
        if self._x > 0 or even_if_empty:
            self.line += 1
            self._x = 0.0

    def _break(self, token: int) -> None:
        self._put(token, " ", self._measure(" "))
        if self._after_break:
            self.new_line()
        self._after_break = not self._after_break

    def _put_text(self, token: int, text: str) -> None:
        while self._measure(text) > self._width:
            fits = max(int(len(text) * self._width / self._measure(text)) - 1, 1)
            self._put(token, text[:fits], self._measure(text[:fits]))
            text = text[fits:]
        self._put(token, text, self._measure(text))

    def _put(self, token: int, text: str, width: float) -> None:
        if self._x > 0 and self._x + width > self._width:
            word = [] if text[:1].isspace() else self._take_word()
            self.new_line()
            for cell in word:
                self.cells.append(replace(cell, x=self._x, line=self.line))
                self._x += cell.width
        self.cells.append(Cell(token, text, self._x, self.line, width))
        self._x += width

    def _take_word(self) -> list[Cell]:
        """Take back the cells of the word that this line ends in, unless the word is most of the line."""
        start = len(self.cells)
        while start > 0 and self.cells[start - 1].line == self.line:
            start -= 1
            if self.cells[start].text[:1].isspace():
                break
        word = self.cells[start:]
        if not word or word[0].x < self._width * 0.6:
            return []
        del self.cells[start:]
        return word
