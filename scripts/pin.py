"""Write ``constraints.txt``: the versions installed here of everything that kvboost needs, directly or not.

    .venv/bin/python scripts/pin.py

Local version tags (``2.13.0+cpu``) are left out, so that the same pin serves every build of a release.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "kvboost-chunks"
EXTRAS = ("dev",)
TARGET = Path(__file__).resolve().parent.parent / "constraints.txt"
HEADER = "# Versions that the tests ran with; written by scripts/pin.py.\n"


def closure() -> dict[str, str]:
    """Return name and version of every installed package that the project's requirements lead to."""
    versions: dict[str, str] = {}
    waiting = [(PROJECT, EXTRAS)]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        name, extras = key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # an optional package that is not here
        versions[canonicalize_name(name)] = distribution.version.partition("+")[0]
        for text in distribution.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((requirement.name, tuple(sorted(requirement.extras))))
    del versions[PROJECT]
    return versions


def main() -> None:
    """Write the file."""
    lines = [f"{name}=={version}\n" for name, version in sorted(closure().items())]
    TARGET.write_text(HEADER + "".join(lines), encoding="utf-8")
    print(f"{TARGET.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
