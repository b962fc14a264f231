"""The map as a picture, drawn with Pillow and the font that it brings along."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from kvboost.types import Tier

from .ansi import printable
from .flow import Cell, Flow, Note, flow
from .page import ReuseMap
from .palette import INK, MUTED, PAPER, REPAIRED, REPAIRED_TEXT, REPAIRED_TINT, RGB, STYLES
from .strip import draw_strip

WIDTH = 1280
MARGIN = 44
_LINE = 27
_CELL = 23
_NO_CHARACTER = "\uffff"
_RELATIVES = {"Pd": "-", "Zs": " ", "Mn": "", "Cf": ""}
_TITLE, _FACT, _BODY, _SMALL = 30, 18, 17, 14


@dataclass(frozen=True)
class Fonts:
    """The built-in font in the sizes that are used."""

    title: ImageFont.FreeTypeFont = field(default_factory=lambda: _font(_TITLE))
    fact: ImageFont.FreeTypeFont = field(default_factory=lambda: _font(_FACT))
    body: ImageFont.FreeTypeFont = field(default_factory=lambda: _font(_BODY))
    small: ImageFont.FreeTypeFont = field(default_factory=lambda: _font(_SMALL))


def to_png(page: ReuseMap) -> Image.Image:
    """Draw title, figures, legend, the whole prompt as a strip, and its text on coloured ground.

    Characters that the built-in font lacks, such as Chinese ones, come out as boxes; the HTML map shows them.
    """
    fonts = Fonts()
    inner = WIDTH - 2 * MARGIN
    drawable = Drawable(fonts.body)
    text = flow(page, lru_cache(maxsize=4096)(lambda part: fonts.body.getlength(drawable(part))), inner)
    facts = [line for fact in page.facts for line in _wrapped(drawable(printable(fact)), fonts.fact, inner)]
    legend_top = MARGIN + 46 + 26 * len(facts) + 14
    strip_top = legend_top + 30 * (len(page.legend) + bool(page.repaired_tokens)) + 18
    text_top = strip_top + 96
    image = Image.new("RGB", (WIDTH, text_top + _LINE * text.lines + MARGIN), PAPER)
    draw = ImageDraw.Draw(image)
    _draw_head(draw, drawable(printable(page.title)), facts, fonts)
    _draw_legend(draw, page, fonts, legend_top)
    draw_strip(draw, page, fonts.small, (MARGIN, strip_top, inner))
    _draw_text(draw, page, text, drawable, fonts, text_top)
    return image


class Drawable:
    """Text with the characters that ``font`` has: others lose their accents, or become a near relative or a box."""

    def __init__(self, font: ImageFont.FreeTypeFont) -> None:
        self._font = font
        self._box = bytes(font.getmask(_NO_CHARACTER))
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Return ``text`` as it can be drawn."""
        return text if text.isascii() else "".join(map(self._one, text))

    def _one(self, character: str) -> str:
        if character not in self._known:
            self._known[character] = self._nearest(character)
        return self._known[character]

    def _nearest(self, character: str) -> str:
        if self._has(character):
            return character
        plain = "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))
        if plain and plain != character and all(map(self._has, plain)):
            return plain
        return _RELATIVES.get(unicodedata.category(character), _NO_CHARACTER)

    def _has(self, character: str) -> bool:
        return bytes(self._font.getmask(character)) != self._box


def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size=size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("this Pillow is built without FreeType; install the wheel from the registry")
    return font


def _wrapped(text: str, font: ImageFont.FreeTypeFont, width: float) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if font.getlength(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _draw_head(draw: ImageDraw.ImageDraw, title: str, facts: Sequence[str], fonts: Fonts) -> None:
    draw.text((MARGIN, MARGIN - 8), title, INK, fonts.title)
    for i, fact in enumerate(facts):
        draw.text((MARGIN, MARGIN + 40 + 26 * i), fact, MUTED, fonts.fact)


def _draw_legend(draw: ImageDraw.ImageDraw, page: ReuseMap, fonts: Fonts, top: int) -> None:
    rows = [(STYLES[tier].colour, count, str(tier), STYLES[tier].meaning) for tier, count in page.legend]
    if page.repaired_tokens:
        name, _, meaning = REPAIRED_TEXT.partition(": ")
        rows.append((REPAIRED, page.repaired_tokens, name, meaning))
    for i, (colour, count, name, meaning) in enumerate(rows):
        y = top + 30 * i
        draw.rounded_rectangle((MARGIN, y, MARGIN + 30, y + 20), 4, colour)
        draw.text((MARGIN + 44, y - 1), name, INK, fonts.fact)
        draw.text((MARGIN + 220, y - 1), f"{count:,}", INK, fonts.fact, anchor="ra")
        draw.text((MARGIN + 300, y - 1), page.share(count), INK, fonts.fact, anchor="ra")
        draw.text((MARGIN + 330, y - 1), meaning, MUTED, fonts.fact)


def _draw_text(
    draw: ImageDraw.ImageDraw, page: ReuseMap, text: Flow, drawable: Drawable, fonts: Fonts, top: int
) -> None:
    for cell in text.cells:
        _draw_ground(draw, page, cell, top)
    for cell in text.cells:
        draw.text((MARGIN + cell.x, top + cell.line * _LINE + 2), drawable(cell.text), INK, fonts.body)
    for note in text.notes:
        _draw_note(draw, page, note, fonts, top)


def _draw_ground(draw: ImageDraw.ImageDraw, page: ReuseMap, cell: Cell, top: int) -> None:
    token = page.tokens[cell.token]
    y = top + cell.line * _LINE
    box = (MARGIN + cell.x, y, MARGIN + cell.x + cell.width - 1, y + _CELL - 1)
    draw.rectangle(box, _ground(page, cell.token))
    if token.repaired:
        draw.rectangle((box[0], y + _CELL - 3, box[2], y + _CELL - 1), REPAIRED)


def _ground(page: ReuseMap, position: int) -> RGB:
    token = page.tokens[position]
    return REPAIRED_TINT if token.repaired else STYLES[token.tier].tint


def _draw_note(draw: ImageDraw.ImageDraw, page: ReuseMap, note: Note, fonts: Fonts, top: int) -> None:
    y = top + note.line * _LINE
    passage = note.passage
    hidden = page.tokens[passage.start : passage.end]
    repaired = sum(token.repaired for token in hidden)
    tier = next((token.tier for token in hidden if not token.repaired), Tier.COMPUTED)
    words = f"{len(passage):,} more tokens, {tier}" + (f", {repaired:,} of them repaired" if repaired else "")
    draw.rectangle((MARGIN, y, MARGIN + 5, y + _CELL - 1), STYLES[tier].colour)
    draw.text((MARGIN + 18, y + 2), f"...  {words}  ...", MUTED, fonts.body)
