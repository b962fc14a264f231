"""The whole prompt as one bar, from the first token on the left to the last on the right."""

from __future__ import annotations

from PIL import ImageDraw, ImageFont

from .page import ReuseMap
from .palette import INK, MUTED, REPAIRED, STYLES

_HEIGHT = 34
_TRACK = 9
_STEPS = (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
_MAX_TICKS = 12


def draw_strip(
    draw: ImageDraw.ImageDraw, page: ReuseMap, font: ImageFont.FreeTypeFont, place: tuple[int, int, int]
) -> None:
    """Draw the bar, the repaired tokens as marks below it, and a scale in tokens.

    Parameters
    ----------
    place
        Left, top and width in pixels.
    """
    left, top, width = place
    total = max(len(page.tokens), 1)

    def x(position: float) -> float:
        return left + width * position / total

    for position, tier in enumerate(page.surroundings()):
        draw.rectangle((x(position), top, x(position + 1), top + _HEIGHT), STYLES[tier].colour)
    for position, token in enumerate(page.tokens):
        if token.repaired:
            middle = x(position + 0.5)
            draw.line((middle, top + _HEIGHT + 2, middle, top + _HEIGHT + 2 + _TRACK), REPAIRED)
    _draw_scale(draw, font, [(x(at), at) for at in _ticks(total)], top + _HEIGHT + _TRACK + 6)
    draw.text((left + width, top + _HEIGHT + _TRACK + 10), f"{len(page.tokens):,} tokens", INK, font, anchor="ra")


def _ticks(total: int) -> range:
    step = next((step for step in _STEPS if total / step <= _MAX_TICKS), _STEPS[-1])
    return range(0, max(total - step // 2, 1), step)


def _draw_scale(
    draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont, ticks: list[tuple[float, int]], y: int
) -> None:
    for x, position in ticks:
        draw.line((x, y - 2, x, y + 3), MUTED)
        draw.text((x, y + 4), f"{position:,}", MUTED, font, anchor="la" if position == 0 else "ma")
