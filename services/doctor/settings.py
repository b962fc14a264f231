"""The configuration in force."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvboost.config import Config, LoadedConfig
from kvboost.config.load import DEFAULT_PATH
from kvboost.errors import ConfigError

from ..commands.config import load_from_arguments
from .finding import Examination, Notes


def examine_settings(args: argparse.Namespace, **overrides: object) -> tuple[Config, Examination]:
    """Load the configuration; where it does not fit, say so and go on with the defaults."""
    notes = Notes("configuration")
    try:
        loaded = load_from_arguments(args, **overrides)
    except ConfigError as error:
        notes.broken(str(error), "mend it (kvboost config init writes a file with every key); defaults are used here")
        return Config(), notes.done()
    _describe(notes, loaded, args.config)
    return loaded.config, notes.done()


def _describe(notes: Notes, loaded: LoadedConfig, named: str | None) -> None:
    changed = {key: origin for key, origin in loaded.origins.items() if origin != "default"}
    file = named or (str(DEFAULT_PATH) if DEFAULT_PATH.is_file() else None)
    notes.figures |= {"file": str(Path(file).resolve()) if file else None, "set": changed}
    where = f"{Path(file).resolve()}" if file else "no file (./kvboost.toml is not there)"
    notes.ok(f"{where}; every key is known, {len(changed)} keys set")
    from_file = {key for key, origin in changed.items() if origin == file}
    overridden = sorted(key for key in changed if key not in from_file)
    if file and overridden:
        notes.note(f"variables and arguments go over the file for {', '.join(overridden)}")
