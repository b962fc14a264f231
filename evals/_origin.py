"""Where a result comes from: commit, machine, versions, model."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

import kvboost
from kvboost.runtime.model.machine import cpu_name

_PACKAGES = ("torch", "transformers", "faiss-cpu", "sentence-transformers")


def origin() -> dict[str, object]:
    """Return commit, machine, versions and date, for the head of a result."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": _dirty(),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": _gpu()},
        "versions": {"python": platform.python_version(), "kvboost": kvboost.__version__, **_versions()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _git(*command: str) -> str | None:
    """Return what git says of this checkout, or None where there is none."""
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _dirty() -> bool | None:
    status = _git("status", "--porcelain")
    return None if status is None else bool(status)


def _gpu() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _versions() -> Mapping[str, str]:
    return {name: metadata.version(name) for name in _PACKAGES}
