"""Paragraph-like blocks of a prompt: what chunks do not cross.

Lines are classed one at a time, each by how it begins and by the fence it stands in, never by what follows: text
appended to a prompt cannot move an earlier block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

LIST_MARKER = (
    r"(?:[-*+•‣◦]|\d{1,3}[.)]|[A-Za-z][.)]|[ivxIVX]{1,5}[.)]|\(\w{1,3}\)"
    r"|[一二三四五六七八九十]{1,3}、|\d{1,3}[、．]|（[\w]{1,3}）|[①-⑳])(?:\[[ xX]\])?"
)
_LINE = re.compile(
    r"[^\S\n]*(?:"
    r"(?P<blank>$)"
    r"|(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})"
    r"|(?P<heading>\#{1,6}(?:[^\S\n]|$))"
    r"|(?P<rule>(?:=+|-{3,}|\*{3,}|_{3,})[^\S\n]*$)"
    rf"|(?P<item>{LIST_MARKER}(?:[^\S\n]|(?<=[、．）①-⑳])))"
    r"|(?P<row>\||[^|\n]{0,40}\S[^\S\n]{1,9}\|[^\S\n]+\S)"
    r"|(?P<quote>>)"
    r"|(?P<turn>(?:user|assistant|system|human|ai|bot|tool|question|answer|context|document|q|a"
    r"|用户|助手|系统|问|答|问题|回答)[^\S\n]*\d{0,4}[:：]"
    r"|(?:document|doc|passage|source|chunk|result)[^\S\n]*[\[(\#]?\d{1,5}\b)"
    r")?",
    re.IGNORECASE,
)
# What chat templates write where the tokenizer at hand does not know it as a special token.
_MARKER = re.compile(r"<\|[\w ]{1,40}\|>|</?(?:start_of_turn|end_of_turn)>|\[/?INST\]|<</?SYS>>")
# A line wider than editors wrap is a paragraph by itself, and so is the next one. CJK is twice as wide.
_MAX_WRAPPED = 120
_WIDE = re.compile(r"[\u2e80-\ud7ff\uf900-\ufaff\uff00-\uff60]")
_AFTER_MARKER = re.compile(r"(?:[^\S\n]*[A-Za-z_]{1,20}[^\S\n]*(?=\n))?(?:\s*\n)?")


class Kind(Enum):
    """What a block is made of, which decides what its units are."""

    PROSE = auto()
    HEADING = auto()
    LIST = auto()
    TABLE = auto()
    QUOTE = auto()
    FENCE = auto()
    MARKER = auto()

    @property
    def by_line(self) -> bool:
        """Whether every line is one unit, not to be cut while it fits a chunk."""
        return self in (Kind.TABLE, Kind.FENCE, Kind.HEADING, Kind.MARKER)


_LINED = (Kind.TABLE, Kind.FENCE)


@dataclass(frozen=True, slots=True)
class Block:
    """Characters ``[start, end)`` that belong together, the white space after them included."""

    start: int
    end: int
    kind: Kind


def find_blocks(text: str, special: Sequence[tuple[int, int]] = ()) -> list[Block]:
    """Cut ``text`` into blocks that cover it exactly once, in order.

    Blank lines, headings, lists, tables, quotes, code fences, chat turns and special tokens make blocks; a
    blank line inside a fence does too, so that an edit in a long listing stays local. Blank lines belong to
    the block before them.

    Parameters
    ----------
    text
        The prompt.
    special
        Character spans of special tokens, in order; each is a block, together with a role name and the line
        ends that follow it.
    """
    blocks: list[Block] = []
    at = 0
    for start, end in _markers(text, special):
        if start < at:
            continue
        blocks += _blocks_between(text, at, start)
        after = _AFTER_MARKER.match(text, end)
        at = after.end() if after else end
        blocks.append(Block(start, at, Kind.MARKER))
    blocks += _blocks_between(text, at, len(text))
    return blocks


def _markers(text: str, special: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    spans = {(start, end) for start, end in special if start < end}
    if "<" in text or "[" in text:
        spans |= {match.span() for match in _MARKER.finditer(text)}
    return sorted(spans)


def _blocks_between(text: str, start: int, end: int) -> Iterator[Block]:
    """Yield the blocks of ``text[start:end]``, in which no special token stands."""
    open_at, kind = start, None
    for at, wanted, fresh in _lines(text, start, end):
        if kind is not None and wanted is not None and (fresh or wanted is not kind):
            yield Block(open_at, at, kind)
            open_at = at
        kind = wanted or kind
    if open_at < end:
        yield Block(open_at, end, kind or Kind.PROSE)


def _lines(text: str, start: int, end: int) -> Iterator[tuple[int, Kind | None, bool]]:
    """Yield each line's start, kind (None: no text, so part of what precedes) and whether it starts a block."""
    fence = ""
    kind: Kind | None = None
    fresh = False
    at = start
    while at < end:
        stop = text.find("\n", at, end) + 1 or end
        match = _LINE.match(text, at, stop - (text[stop - 1] == "\n"))
        found = match.lastgroup if match else None
        mark = match.group(found) if match and found else ""
        if found == "blank":
            yield at, None, False
            fresh = True
        elif fence:
            yield at, Kind.FENCE, fresh
            fresh = found == "fence" and mark.startswith(fence) and not text[at:stop].strip(" \t\r\n`~")
            fence = "" if fresh else fence
            kind = Kind.FENCE
        else:
            new = _kind(found, None if fresh else kind)
            opens = new in (Kind.HEADING, Kind.FENCE) or found == "turn"
            yield at, new, fresh or opens
            fence = mark if found == "fence" else ""
            fresh = new is Kind.HEADING or found == "rule" or (new not in _LINED and _unwrapped(text, at, stop))
            kind = new
        at = stop


def _unwrapped(text: str, start: int, end: int) -> bool:
    length = end - start
    return length > _MAX_WRAPPED or (length > _MAX_WRAPPED // 2 and _WIDE.search(text, start, end) is not None)


def _kind(found: str | None, before: Kind | None) -> Kind:
    """Return a line's kind; ``before`` is that of the line above in the same block, if any."""
    if found == "item":
        return Kind.LIST
    if found == "row" or (found == "rule" and before is Kind.TABLE):
        return Kind.TABLE
    if found == "quote":
        return Kind.QUOTE
    if found == "heading":
        return Kind.HEADING
    if found == "fence":
        return Kind.FENCE
    if before is Kind.LIST and found is None:
        return Kind.LIST  # an item goes on over the line's end
    if found == "rule" and before is not None:
        return before  # it underlines the line above
    return Kind.PROSE
