"""Where the demo's figures come from: machine, commit, versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from kvboost import __version__

_PACKAGES = ("torch", "transformers", "faiss-cpu", "sentence-transformers", "grpcio")


def machine() -> dict[str, object]:
    """Return processor, cores, threads asked for, and how busy the machine is."""
    from kvboost.runtime.model.machine import busy_cores, cpu_name

    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "load_average_1_min": round(busy_cores(), 2),
        "platform": platform.platform(),
    }


def commit() -> str | None:
    """Return the commit of the checkout that this file is in, or None."""
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Return the versions of Python, KVBoost and what it stands on."""
    return {
        "python": platform.python_version(),
        "kvboost": __version__,
        **{name: metadata.version(name) for name in _PACKAGES},
    }
