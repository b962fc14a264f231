"""The fenced blocks of the documentation, and how each is treated.

A block of commands or Python is run as it stands. Its info string may say otherwise:

``background``
    a server: it runs until the page's last block has ended, and is ready when it says so;
``static`` with a ``data-why``, the reason
    cannot run in a test, so its commands are only checked against what they name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
COMMANDS = ("bash", "console", "sh", "shell")
_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes
    ----------
    line
        Number of its first line on the page.
    language
        Such as ``bash``; empty if it names none.
    treatment
        ``run``, ``background``, ``static``, or ``text`` for what is neither commands nor Python.
    reason
        Why it is not run; empty unless ``static``.
    """

    page: str
    line: int
    language: str
    treatment: str
    reason: str
    body: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.language or 'text'}: {self.treatment} {self.reason}".rstrip()


def blocks_of(page: Path) -> list[Block]:
    """Return the page's blocks in their order."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    return [_block(name, text.count("\n", 0, found.start()) + 1, found) for found in _FENCE.finditer(text)]


def _block(page: str, line: int, found: re.Match[str]) -> Block:
    info = found["info"].strip().strip("{}")
    why = re.search(r'data-why="([^"]*)"', info)
    words = [word.lstrip(".") for word in re.sub(r'[\w-]+="[^"]*"', "", info).split()]
    language = words[0] if words else ""
    marks = set(words[1:])
    if language not in (*COMMANDS, "python"):
        return Block(page, line, language, "text", "", found["body"])
    unknown = marks - {"background", "static"}
    assert not unknown, f"{page}:{line}: {unknown} says nothing"
    treatment = next(iter(marks), "run")
    reason = why.group(1) if why else ""
    return Block(page, line, language, treatment, reason, found["body"])
