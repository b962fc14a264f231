"""Headless Chromium, for pages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=5000",
)


def installed() -> str:
    """Return the browser's path; skip the test where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium is installed")
    return found


def screenshot(url: str, target: Path, width: int, height: int, profile: Path) -> None:
    """Write a picture of the page."""
    _run([f"--screenshot={target}", f"--window-size={width},{height}", "--hide-scrollbars", url], profile)


def dom(url: str, profile: Path) -> str:
    """Return the page's HTML after its scripts ran."""
    return _run(["--dump-dom", url], profile)


def _run(arguments: list[str], profile: Path) -> str:
    command = [installed(), *_FLAGS, f"--user-data-dir={profile}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
