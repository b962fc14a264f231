"""Turning what a file, a variable or an argument says into the type that a field wants."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache

from kvboost.config.schema import Config
from kvboost.errors import ConfigError

_SIZE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_BOOLEANS = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
_EXPECTED = {
    "text": "text",
    "flag": "true or false",
    "count": "a whole number",
    "size": 'a whole number of bytes, or a size such as "2GiB"',
    "number": "a number",
    "names": "a list of names",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One setting: its dotted key, the kind of value that it takes, and its default."""

    key: str
    kind: str
    default: object


@cache
def known_fields() -> dict[str, Field]:
    """Return every setting under its key, in the order of the file."""
    config = Config()
    found = {}
    for section in fields(config):
        values = getattr(config, section.name)
        for each in fields(values):
            default = getattr(values, each.name)
            key = f"{section.name}.{each.name}"
            found[key] = Field(key, _kind(each.name, default), default)
    return found


def coerce(field: Field, value: object, origin: str, from_text: bool) -> object:
    """Return ``value`` in the type of ``field``.

    With ``from_text``, text is read as that type: variables and arguments have no types of their own. A file
    has, so there only sizes are read from text.

    Raises
    ------
    ConfigError
        Naming the origin, the field and the expected type.
    """
    try:
        if isinstance(value, str) and (from_text or field.kind in ("text", "size")):
            return _from_text(field.kind, value)
        return _typed(field.kind, value)
    except ValueError:
        raise ConfigError(f"{origin}: {field.key} must be {_EXPECTED[field.kind]}, not {value!r}") from None


def format_size(size: int) -> str:
    """Return ``size`` with the largest binary unit that divides it: 2147483648 -> ``2GiB``."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def _kind(name: str, default: object) -> str:
    match default:
        case bool():
            return "flag"
        case int():
            return "size" if name.endswith("_bytes") else "count"
        case float():
            return "number"
        case tuple():
            return "names"
        case _:
            return "text"


def _typed(kind: str, value: object) -> object:
    match kind, value:
        case "flag", bool():
            return value
        case (("count" | "size" | "number"), bool()):
            raise ValueError
        case (("count" | "size"), int()):
            return value
        case "number", int() | float():
            return float(value)
        case "names", list() | tuple() if all(isinstance(v, str) for v in value):
            return tuple(value)
    raise ValueError


def _from_text(kind: str, text: str) -> object:
    match kind:
        case "flag":
            if text.strip().lower() not in _BOOLEANS:
                raise ValueError
            return _BOOLEANS[text.strip().lower()]
        case "count":
            return int(text)
        case "size":
            return _size(text)
        case "number":
            return float(text)
        case "names":
            return tuple(name.strip() for name in text.split(",") if name.strip())
        case _:
            return text


def _size(text: str) -> int:
    parsed = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    if parsed is None or parsed[2].lower() not in _SIZE_UNITS:
        raise ValueError
    if "." in parsed[1]:
        return int(float(parsed[1]) * _SIZE_UNITS[parsed[2].lower()])
    return int(parsed[1]) * _SIZE_UNITS[parsed[2].lower()]
