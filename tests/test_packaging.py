"""What import-linter cannot see: every package is in the wheel, and the library does not import the services."""

from __future__ import annotations

import tomllib
from pathlib import Path

import kvboost

ROOT = Path(__file__).resolve().parent.parent


def packages_in(folder: str, name: str) -> set[str]:
    return {
        ".".join([name, *init.parent.relative_to(ROOT / folder).parts]) for init in (ROOT / folder).rglob("__init__.py")
    }


def test_the_wheel_holds_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["setuptools"]["packages"]) == (
        packages_in("kvboost", "kvboost") | packages_in("services", "kvboost.services")
    )


def test_the_version_is_said_once_and_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["version"] == kvboost.__version__


def test_the_library_does_not_import_the_services() -> None:
    for file in (ROOT / "kvboost").rglob("*.py"):
        assert "kvboost.services" not in file.read_text(encoding="utf-8"), file
