"""Python and the packages, against what this one asks for."""

from __future__ import annotations

import platform
from importlib import metadata
from importlib.util import find_spec

from packaging.requirements import Requirement

from kvboost import __version__
from kvboost.extras import DISTRIBUTION

from .finding import Examination, Notes

# doctor itself stands on these two; whoever wants the others is told by the command that needs them.
_LOOKED_AT = ("", "cache", "runtime")
_SHOWN = ("torch", "transformers", "faiss-cpu", "sentence-transformers", "grpcio")


def examine_software() -> Examination:
    """Look at the versions of Python and of every required package."""
    notes = Notes("software")
    found = {one.name: _installed(one.name) for one in _requirements()}
    notes.figures["versions"] = {"kvboost": __version__, "python": platform.python_version(), **found}
    shown = ", ".join(f"{name} {found[name]}" for name in _SHOWN if found.get(name))
    notes.ok(f"kvboost {__version__}, Python {platform.python_version()}, {shown}")
    for one in _requirements():
        version = found[one.name]
        if version is None:
            notes.broken(f"package {one.name} is missing", f"pip install '{one}'")
        elif not one.specifier.contains(version, prereleases=True):
            notes.warn(f"{one.name} {version} is outside {one.specifier}", f"pip install '{one}'")
    return notes.done()


def flash_attention_installed() -> bool:
    """Return whether the package flash-attn can be imported."""
    return find_spec("flash_attn") is not None


def _requirements() -> list[Requirement]:
    """Return what an installation with a runtime needs; nothing where it was not installed as a package."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    wanted = [Requirement(line) for line in lines]
    return [
        one
        for one in wanted
        if one.name != DISTRIBUTION
        and (one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in _LOOKED_AT))
    ]


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
