"""``kvboost config``: what holds, where it came from, and a file to start from."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from kvboost import config
from kvboost.config import LoadedConfig
from kvboost.config.render import toml_value
from kvboost.errors import ConfigError

HELP = "show the configuration that holds, or write a file to start from"
EXAMPLE = "kvboost config show --set policy.threshold=0.9"
EXTRA = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add ``show`` and ``init``."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    show = actions.add_parser("show", help="print every setting and where its value came from")
    add_config_arguments(show)
    show.add_argument("--json", action="store_true", help="print JSON")
    init = actions.add_parser("init", help="write a file with every setting explained and commented out")
    init.add_argument("path", nargs="?", type=Path, default=Path("kvboost.toml"), help="default: kvboost.toml")
    init.add_argument("--force", action="store_true", help="replace a file that is there")


def run(args: argparse.Namespace) -> int:
    """Do what ``args.action`` says."""
    if args.action == "init":
        _init(args.path, args.force)
        return 0
    loaded = load_from_arguments(args)
    print(_as_json(loaded) if args.json else _as_table(loaded))
    return 0


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and ``--set``, for every command that reads the configuration."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: kvboost.toml, if it is there)")
    parser.add_argument(
        "--set",
        metavar="SECTION.KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="set one value over the file and the environment; may be repeated",
    )


def load_from_arguments(args: argparse.Namespace, **overrides: object) -> LoadedConfig:
    """Load what ``--config`` and ``--set`` ask for.

    ``overrides`` come from options of the command's own, as ``section__key=value``; None means not given.
    """
    own = {key.replace("__", ".", 1): value for key, value in overrides.items() if value is not None}
    return config.load(args.config, os.environ, _settings(args.settings) | own)


def _settings(pairs: Sequence[str]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair!r} must have the form section.key=value")
        settings[key.strip()] = value.strip()
    return settings


def _as_table(loaded: LoadedConfig) -> str:
    lines: list[str] = []
    rows = {key: f"{key.partition('.')[2]} = {toml_value(loaded.config, key)}" for key in loaded.origins}
    width = max(len(row) for row in rows.values())
    section = ""
    for key, row in rows.items():
        if key.partition(".")[0] != section:
            section = key.partition(".")[0]
            lines += ["", f"[{section}]"]
        lines.append(f"{row:<{width}}  # {loaded.origins[key]}")
    return "\n".join(lines[1:])


def _as_json(loaded: LoadedConfig) -> str:
    shown: dict[str, dict[str, object]] = {}
    for key, origin in loaded.origins.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(loaded.config, section), name)
        shown.setdefault(section, {})[name] = {"value": value, "origin": origin}
    return json.dumps(shown, indent=2)


def _init(path: Path, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(config.default_file())
    except FileExistsError:
        raise ConfigError(f"{path} is there already; use --force to replace it, or give another path") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    print(f"wrote {path}")
