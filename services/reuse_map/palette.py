"""Colours and words of the tiers, shared by all forms of the map.

The hues are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which people with any common form of
colour blindness can tell apart; behind text they are mixed with white, so that black text stays readable.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvboost.types import Tier

RGB = tuple[int, int, int]

INK: RGB = (26, 26, 26)
MUTED: RGB = (95, 95, 95)
PAPER: RGB = (255, 255, 255)
REPAIRED: RGB = (213, 94, 0)
REPAIRED_TINT: RGB = (250, 226, 208)
REPAIRED_TEXT = "repaired: had a donor, recomputed all the same"
_WHITE_SHARE = 0.62


@dataclass(frozen=True, slots=True)
class Style:
    """How a tier looks: its full colour, the colour behind text, the code in a 256-colour terminal, its meaning."""

    colour: RGB
    tint: RGB
    terminal: int
    meaning: str


def hex_of(colour: RGB) -> str:
    """Return ``#rrggbb``."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _style(colour: RGB, terminal: int, meaning: str) -> Style:
    red, green, blue = (round(255 * _WHITE_SHARE + c * (1 - _WHITE_SHARE)) for c in colour)
    return Style(colour, (red, green, blue), terminal, meaning)


STYLES: dict[Tier, Style] = {
    Tier.PREFIX: _style((0, 158, 115), 115, "same tokens, same history: lossless"),
    Tier.CONTINUED: _style((0, 114, 178), 74, "what an earlier turn was answered from"),
    Tier.EXACT: _style((86, 180, 233), 117, "same tokens, elsewhere"),
    Tier.SIMILAR: _style((230, 159, 0), 222, "equal tokens of a similar chunk"),
    Tier.SUBSTITUTE: _style((204, 121, 167), 218, "a similar chunk's wording"),
    Tier.COMPUTED: Style((176, 176, 176), (238, 238, 238), 253, "by this request's own pass"),
}
REPAIRED_TERMINAL = 216
