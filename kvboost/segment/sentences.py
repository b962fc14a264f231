"""Units of a block: sentences, list items, table rows, lines of code; and where a long one may be cut.

Every break is a character offset after which the next unit begins. White space up to the last line end belongs
to the unit before the break; a space on the same line leads the next unit, because tokenizers join it to the
next word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvboost.segment.blocks import LIST_MARKER, Kind
from kvboost.segment.language import FullStops

_LATIN = ".!?"
_OTHER = "。！？；｡…।॥؟۔።։။"
_CLOSERS = "\"'”’»›)\\]}*_`」』）】》〉〕］"
_REST = rf"(?P<closers>[{_CLOSERS}]*)(?P<space>\s*\n|\s*$)?"
_SENTENCE_END = re.compile(rf"(?:(?P<latin>[{_LATIN}]+)|(?P<other>[{_OTHER}][{_OTHER}!?.]*)){_REST}")
_CLAUSE_END = re.compile(rf"(?:[,;:](?=[{_CLOSERS}]*\s)|—+|–(?=\s)|[，、：；،؛](?!\d)){_REST}")
_WORD_END = re.compile(r"\S+(?P<space>\s*\n)?")
_WIDE = re.compile(r"[\u2e80-\ud7ff\uf900-\ufaff\uff00-\uff60]")
_MARKER = re.compile(rf"[^\S\n]*(?:>[^\S\n]*)*(?:{LIST_MARKER}|\#{{1,6}})[^\S\n]+(?=\S)")
_NEXT_WORD = re.compile(r"\s*[\"'“‘«‹(\[{*_`「『（【《〈]*(\S{1,40})")
_SPEAKER = re.compile(
    r"[^\S\n]*(?:[\[(][^\])\n]{1,30}[\])]\s*|\d\d?:\d\d\s+)?"
    r"(?:[^\s:：]{1,20}|(?=[^a-z])[^\s:：]{1,20}(?:[^\S\n][^\s:：.!?。]{1,20}){1,2})[:：](?=\s|[^\x00-\x7f])"
    r"|[\[(]\d|\d\d?:\d\d\b|<[^\s>]{1,20}>[^\S\n]"
)
_CODE_END = re.compile(r"[{}(\[\\][^\S\n]*$")
_LINE_END = re.compile(r"\n(?=[^\S\n]*\S)")
_MAX_WORD = 48
# A line that its next word would still have fitted was ended on purpose: chat, verse, addresses, code.
_WRAP_WIDTH = 50


def unit_ends(text: str, kind: Kind, stops: FullStops) -> list[int]:
    """Return the ends of the units of one block, increasing; the last is ``len(text)``.

    Depends on ``text`` and ``kind`` alone, so that the same block is cut alike in every prompt.
    """
    ends = set(_line_ends(text, kind))
    if not kind.by_line:
        ends.update(_sentence_ends(text, stops))
        ends -= _inside_markers(text)
    ends.add(len(text))
    ends.discard(0)
    return sorted(ends)


def clause_ends(text: str) -> list[int]:
    """Return where a sentence may be cut at a clause mark: ``, ; : —`` or their CJK and Arabic forms."""
    return _kept(text, (match.end() for match in _CLAUSE_END.finditer(text)))


def word_ends(text: str) -> list[int]:
    """Return where a sentence may be cut between words."""
    return _kept(text, (match.end() for match in _WORD_END.finditer(text)))


def _kept(text: str, ends: Iterator[int]) -> list[int]:
    inside = _inside_markers(text)
    return [end for end in ends if end not in inside]


def _inside_markers(text: str) -> set[int]:
    """Return the offsets in front of an item's text that would part it from its marker."""
    at = 0
    inside: set[int] = set()
    while True:
        match = _MARKER.match(text, at)
        if match:
            inside.update(range(match.start() + 1, match.end() + 1))
        at = text.find("\n", at) + 1
        if not at:
            return inside


def _sentence_ends(text: str, stops: FullStops) -> Iterator[int]:
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        mark = match.group("latin")
        after = text[end : end + 1]
        if end == len(text) or (mark and not match.group("space") and not (after.isspace() or _WIDE.match(after))):
            continue
        following = _NEXT_WORD.match(text, end)
        word = following.group(1) if following else ""
        if mark and "!" not in mark and "?" not in mark:
            ends_here = stops.ends_sentence(_word_before(text, match.start()) + mark, word)
        elif word[:1].islower():
            # "Stop!" he said -- and: Wait… what?
            ends_here = not match.group("closers") if mark else "…" not in match.group("other")
        else:
            ends_here = True
        if ends_here:
            yield end


def _word_before(text: str, end: int) -> str:
    start = max(0, end - _MAX_WORD)
    words = text[start:end].split()
    if not words or text[end - 1].isspace():
        return ""
    return words[-1].lstrip("\"'“‘«‹([{*_`")


def _line_ends(text: str, kind: Kind) -> Iterator[int]:
    """Yield the line ends that are unit ends too."""
    at = 0
    for match in _LINE_END.finditer(text):
        if kind.by_line or _ends_unit(text, at, match.end()):
            yield match.end()
        at = match.end()


def _ends_unit(text: str, start: int, end: int) -> bool:
    """Whether the line ``text[start:end]`` of prose or of a list is a unit end by itself."""
    if _MARKER.match(text, end) or _SPEAKER.match(text, end) or _CODE_END.search(text, start, end - 1):
        return True
    following = _NEXT_WORD.match(text, end)
    if following is None:
        return False
    line = text[start : end - 1].rstrip()
    word = following.group(1)
    width = len(line) + 1 + len(word) + len(_WIDE.findall(line)) + len(_WIDE.findall(word))
    return width < _WRAP_WIDTH
