"""The map in files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvboost.errors import InputError

from .html import to_html
from .page import ReuseMap


def write_png(page: ReuseMap, path: str | os.PathLike[str]) -> Path:
    """Write the picture to ``path``, making its folder, and return the path.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    from .png import to_png  # its library is not needed by those who only write HTML

    with _writable(path) as target:
        to_png(page).save(target, "PNG", optimize=True)
    return target


def write_html(page: ReuseMap, path: str | os.PathLike[str]) -> Path:
    """Write the HTML page to ``path``; otherwise as :func:`write_png`."""
    with _writable(path) as target:
        target.write_text(to_html(page), encoding="utf-8")
    return target


@contextmanager
def _writable(path: str | os.PathLike[str]) -> Iterator[Path]:
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield target
    except OSError as error:
        raise InputError(f"{target} cannot be written ({error.strerror or error}); give another path") from error
