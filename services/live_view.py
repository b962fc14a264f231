"""A view that is drawn over itself on a terminal, and a line each time elsewhere."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

_UP_AND_CLEAR = "\x1b[{}F\x1b[J"


class LiveView:
    """Draws a text of several lines in place of the one before.

    Parameters
    ----------
    out
        Standard output without it.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._drawn = 0

    @property
    def in_place(self) -> bool:
        """Whether the output is a terminal."""
        return self._out.isatty()

    def draw(self, text: str) -> None:
        """Show ``text``; on a terminal cut to its size, since lines that wrapped or scrolled cannot be taken back."""
        lines = text.split("\n")
        if self.in_place:
            columns, rows = shutil.get_terminal_size()
            lines = [line[:columns] for line in lines[: max(rows - 1, 1)]]
            if self._drawn:
                self._out.write(_UP_AND_CLEAR.format(self._drawn))
        self._out.write("\n".join(lines) + "\n")
        self._out.flush()
        self._drawn = len(lines)
