"""The map in a terminal."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from kvboost.types import Tier

from .page import Passage, ReuseMap
from .palette import REPAIRED_TERMINAL, REPAIRED_TEXT, STYLES

_RESET = "\x1b[0m"
_EXCERPT = 24


def supports_colour(stream: TextIO | None = None) -> bool:
    """Whether ``stream`` (default stdout) is a terminal that may be coloured: ``NO_COLOR`` and ``TERM=dumb`` say no."""
    stream = sys.stdout if stream is None else stream
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def to_ansi(page: ReuseMap) -> str:
    """Return the map in 256 colours: title, legend, and the prompt's text on coloured ground."""
    lines = [f"\x1b[1m{printable(page.title)}{_RESET}", *map(printable, page.facts)]
    for tier, count in page.legend:
        style = STYLES[tier]
        lines.append(f"{_paint('  ', style.terminal)} {_entry(tier, count, page)}")
    if page.repaired_tokens:
        repaired = page.repaired_tokens
        lines.append(f"{_paint('  ', REPAIRED_TERMINAL)} {repaired:>6} {page.share(repaired):>6}  {REPAIRED_TEXT}")
    return "\n".join([*lines, "", "".join(_passage(page, passage) for passage in page.passages())])


def to_plain(page: ReuseMap) -> str:
    """Return the map without colours: one line for each stretch of one tier, with its first and last words."""
    lines = [printable(page.title), *map(printable, page.facts)]
    lines += [_entry(tier, count, page) for tier, count in page.legend]
    if page.repaired_tokens:
        lines.append(f"{page.repaired_tokens:>6} {page.share(page.repaired_tokens):>6}  {REPAIRED_TEXT}")
    lines.append("")
    for stretch in page.stretches():
        first = page.tokens[stretch.start]
        tier = "repaired" if first.repaired else str(first.tier)
        mark = f" {first.similarity:.3f}" if first.tier is Tier.SIMILAR else ""
        place = f"{stretch.start:>6} {len(stretch):>5}  {tier + mark:<15}"
        lines.append(f"{place}  {_excerpt(page, stretch)}")
    return "\n".join(lines)


def printable(text: str) -> str:
    """Return ``text`` with control characters visible: a prompt must not steer the terminal."""
    return "".join(c if c.isprintable() else _visible(c) for c in text)


def _visible(character: str) -> str:
    code = ord(character)
    if code < 32:
        return chr(0x2400 + code)
    return "␡" if code == 127 else "\N{REPLACEMENT CHARACTER}"


def _entry(tier: Tier, count: int, page: ReuseMap) -> str:
    return f"{count:>6} {page.share(count):>6}  {tier:<10} {STYLES[tier].meaning}"


def _paint(text: str, terminal: int) -> str:
    return f"\x1b[38;5;16;48;5;{terminal}m{text}{_RESET}"


def _passage(page: ReuseMap, passage: Passage) -> str:
    if not passage.shown:
        return f"\n\x1b[2m... {len(passage):,} more tokens ...{_RESET}\n"
    painted = []
    for token in page.tokens[passage.start : passage.end]:
        terminal = REPAIRED_TERMINAL if token.repaired else STYLES[token.tier].terminal
        # A line break is printed outside of the colour, or the terminal paints the rest of the line.
        parts = [printable(part) for part in token.text.split("\n")]
        painted.append("\n".join(_paint(part, terminal) if part else "" for part in parts))
    return "".join(painted)


def _excerpt(page: ReuseMap, stretch: Passage) -> str:
    text = printable("".join(t.text for t in page.tokens[stretch.start : stretch.end]).replace("\n", " "))
    if len(text) <= 2 * _EXCERPT + 5:
        return repr(text)
    return f"{text[:_EXCERPT]!r} ... {text[-_EXCERPT:]!r}"
