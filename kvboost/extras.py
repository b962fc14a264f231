"""The parts that can be left out of an installation, and the sentence that names one that is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec

from kvboost.errors import MissingExtraError, UnsupportedVersionError

DISTRIBUTION = "kvboost-chunks"
# Modules that tell whether an extra is installed.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "cache": ("faiss", "blake3", "grpc_health", "grpc_reflection"),
    "runtime": ("torch", "transformers", "faiss", "nltk", "punkt", "jinja2", "PIL", "psutil"),
    "gateway": ("fastapi", "uvicorn", "prometheus_client"),
    "demo": ("gguf", "torch", "transformers"),
    "all": ("torch", "transformers", "faiss", "grpc_health", "fastapi", "uvicorn", "prometheus_client"),
}


def require(extra: str, what: str, *modules: str) -> None:
    """Refuse to begin what needs an extra that is not installed.

    Parameters
    ----------
    extra
        Its name in ``pyproject.toml``.
    what
        Who needs it, as the caller knows it.
    *modules
        What of the extra is needed; all of it where none is named.

    Raises
    ------
    MissingExtraError
        In one sentence with the command that installs it.
    """
    if not all(map(_is_there, modules or EXTRAS[extra])):
        raise MissingExtraError(f"{what} needs the {extra} extra: pip install '{DISTRIBUTION}[{extra}]'")


def check_version(distribution: str, least: str, below: str, what: str) -> None:
    """Refuse to begin with a version that is known not to do, or that nobody has tried.

    Parameters
    ----------
    least, below
        Versions as dotted numbers; ``below`` is the first that is too new, empty for none.

    Raises
    ------
    UnsupportedVersionError
        In one sentence with the command that installs one that does.
    """
    try:
        found = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return  # put on the path by hand: nothing says which it is
    if not _numbers(least) <= _numbers(found) or (below and _numbers(found) >= _numbers(below)):
        wanted = f"{distribution}>={least}" + (f",<{below}" if below else "")
        raise UnsupportedVersionError(f"{what} does not work with {distribution} {found}: pip install '{wanted}'")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release of a version; a pre-release counts as its release."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
