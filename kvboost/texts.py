"""Text that comes from outside: from files, and on its way to a service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvboost.errors import InputError


def check_text(text: str, field: str) -> None:
    """Refuse half a surrogate pair, as JSON can hold it: it stands for no character and has no UTF-8.

    Raises
    ------
    InputError
        Naming ``field``.
    """
    if not isinstance(text, str):
        raise InputError(f"{field} must be a text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{field} holds half of a surrogate pair at character {error.start}; send whole characters"
        ) from None


def check_texts(texts: Sequence[str], field: str) -> None:
    """Refuse what is no list of texts; errors as of :func:`check_text`."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        given = "one text" if isinstance(texts, str) else type(texts).__name__
        raise InputError(f"{field} must be a list of texts, not {given}")
    for i, text in enumerate(texts):
        check_text(text, f"{field}[{i}]")


def decoded(raw: bytes, name: str, kind: type[InputError] = InputError) -> str:
    """Return the text of ``raw``, which is UTF-8 with or without a byte order mark, or UTF-16 with one.

    Raises
    ------
    InputError
        If it is neither; as ``kind``, naming ``name``.
    """
    form, encoding = ("UTF-16", "utf-16") if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else ("UTF-8", "utf-8-sig")
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise kind(f"{name} is not {form} text (byte {error.start}); convert it first") from None


def read_text(path: str | Path, name: str | None = None, kind: type[InputError] = InputError) -> str:
    """Return the text of a file, line ends as ``\\n``; a byte order mark is no part of it.

    Raises
    ------
    InputError
        If it cannot be read, or is no text; as ``kind``, naming ``name``, by default the path.
    """
    called = name or str(path)
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path can be so"
        raise kind(f"{called} cannot be read ({reason}); give a text file") from error
    return decoded(raw, called, kind).replace("\r\n", "\n").replace("\r", "\n")
