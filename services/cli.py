"""The command ``kvboost``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from kvboost import __version__
from kvboost.errors import KVBoostError
from kvboost.extras import require

from .progress import silence_other_bars

COMMANDS = (
    "demo",
    "explain",
    "plan",
    "serve",
    "serve_cache",
    "serve_runtime",
    "serve_gateway",
    "warm",
    "stats",
    "config",
    "doctor",
)
"""Modules of :mod:`kvboost.services.commands`, in the order of ``--help``."""

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


class Command(Protocol):
    """What a module of :mod:`kvboost.services.commands` offers."""

    HELP: str
    EXAMPLE: str
    EXTRA: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do the work; return the exit status."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2 for an error, told in one sentence on stderr."""
    silence_other_bars()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parser(arguments).parse_args(arguments)
        if args.extra:
            require(args.extra, args.command)
        status: int = args.run(args)
        sys.stdout.flush()
    except KVBoostError as error:
        print(f"kvboost: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (such as `head`) has gone; without this, Python complains again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    modules = {name.replace("_", "-"): _load(name) for name in _wanted(arguments)}
    width = max(len(name) for name in modules)
    parser = argparse.ArgumentParser(
        prog="kvboost",
        description="Reuse the K/V tensors of repeated context, wherever it stands in the prompt.",
        epilog="commands:\n" + "\n".join(f"  {name:<{width}}  {one.HELP}" for name, one in modules.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kvboost {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, help="what to do; each command has --help")
    for name, command in modules.items():
        one = commands.add_parser(
            name,
            description=command.HELP,
            epilog=f"example:\n  {command.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.configure(one)
        one.set_defaults(run=command.run, extra=command.EXTRA, command=f"kvboost {name}")
    return parser


def _load(module: str) -> Command:
    return cast(Command, importlib.import_module(f".commands.{module}", __package__))


def _wanted(arguments: Sequence[str]) -> Sequence[str]:
    """Return the module of the command that is called, or all where that is not clear."""
    called = arguments[0].replace("-", "_") if arguments else ""
    return [called] if called in COMMANDS else COMMANDS


if __name__ == "__main__":
    raise SystemExit(main())
