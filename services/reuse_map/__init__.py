"""The reuse map: a prompt's tokens coloured by where their K/V came from, as PNG, HTML and terminal text."""

from .ansi import supports_colour, to_ansi, to_plain
from .files import write_html, write_png
from .html import to_html
from .page import MapToken, ReuseMap, map_tokens

__all__ = [
    "MapToken",
    "ReuseMap",
    "map_tokens",
    "supports_colour",
    "to_ansi",
    "to_html",
    "to_plain",
    "write_html",
    "write_png",
]
