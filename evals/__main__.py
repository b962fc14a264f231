"""Run every eval, or list them: ``python -m evals [--list] [--quick] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import evals


def names() -> list[str]:
    """Return the evals: the public modules of this package."""
    return sorted(m.name for m in pkgutil.iter_modules(evals.__path__) if not m.name.startswith("_"))


def summary(name: str) -> str:
    """Return the first line of an eval's docstring."""
    return (importlib.import_module(f"evals.{name}").__doc__ or "").partition("\n")[0]


def main() -> int:
    """Do what the command line asks; exit 1 if an eval failed."""
    parser = argparse.ArgumentParser(prog="python -m evals", description="Run every eval, each in its own process.")
    parser.add_argument("--list", action="store_true", help="name the evals and what each measures, run none")
    parser.add_argument("--quick", action="store_true", help="pass --quick on to each")
    parser.add_argument("--out", type=Path, default=Path("evals-out"), help="folder for NAME.json (default: evals-out)")
    args = parser.parse_args()
    if args.list or not names():
        print("\n".join(f"{name:<12} {summary(name)}" for name in names()) or "there are no evals in evals/")
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names():
        print(f"== {name}: {summary(name)}", flush=True)
        quick = ["--quick"] if args.quick else []
        command = [sys.executable, "-m", f"evals.{name}", "--json", str(args.out / f"{name}.json"), *quick]
        if subprocess.run(command, check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
