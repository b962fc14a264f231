"""Small findings about a model that are kept in the user's cache directory for the next start."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path


def read_kept(path: Path) -> object:
    """Return the JSON value on file; None where there is none, or the file is damaged."""
    try:
        value: object = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value


def write_kept(path: Path, value: object) -> None:
    """Write atomically; a cache directory that cannot be written only costs finding out again at the next start."""
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(value))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
