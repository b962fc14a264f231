"""What can be told of a command without running it."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import yaml

from kvboost.services.cli import _parser
from tests.docs.blocks import ROOT


def check(body: str) -> None:
    """Check each command of a block that is not run; fail on one that nothing is known about."""
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words:
            assert words[0] in _CHECKS, f"no way to check {line!r}"
            _CHECKS[words[0]](words[1:])


def kvboost_command(arguments: list[str]) -> None:
    """Parse the arguments as the command does."""
    _parser(arguments).parse_args(arguments)


def _make(arguments: list[str]) -> None:
    done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _source(arguments: list[str]) -> None:
    assert arguments == [".venv/bin/activate"]  # what the Makefile's venv has
    assert re.search(r"^VENV := \.venv$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def _python(arguments: list[str]) -> None:
    assert arguments[0] == "-m"
    parser: argparse.ArgumentParser = importlib.import_module(arguments[1])._parser()
    parser.parse_args(arguments[2:])


def _docker(arguments: list[str]) -> None:
    assert arguments[:2] == ["compose", "-f"]
    composed: dict[str, Any] = yaml.safe_load((ROOT / arguments[2]).read_text())
    assert composed["services"]
    assert arguments[3:] == ["up", "--build"]


def _kubectl(arguments: list[str]) -> None:
    if arguments[:2] == ["apply", "-k"]:
        assert (ROOT / arguments[2] / "kustomization.yaml").is_file()
        return
    assert arguments[0] == "-n"
    files = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    objects = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    known = {
        f"{one['kind'].lower()}/{one['metadata']['name']}"
        for one in objects
        if one["kind"] != "Kustomization" and one["metadata"].get("namespace") == arguments[1]
    }
    assert arguments[2] in ("rollout", "port-forward")
    (named,) = [word for word in arguments[3:] if "/" in word]
    assert named in known, f"{named} is not among {sorted(known)}"


def _pip(arguments: list[str]) -> None:
    import tomllib

    assert arguments[0] == "install"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted in arguments[1:]:
        found = re.fullmatch(r"([\w-]+)(?:\[([\w,-]+)\])?", wanted)
        assert found, wanted
        assert found[1] == project["name"]
        assert set((found[2] or "").split(",")) - {""} <= set(project["optional-dependencies"])


def _script(arguments: list[str]) -> None:
    assert (ROOT / Path(arguments[0])).is_file()


_CHECKS = {
    "kvboost": kvboost_command,
    "make": _make,
    "source": _source,
    "python": _python,
    "docker": _docker,
    "kubectl": _kubectl,
    "pip": _pip,
    "bash": _script,
}
