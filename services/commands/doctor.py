"""``kvboost doctor``: what works on this machine, what does not, and what to do about it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .config import add_config_arguments

if TYPE_CHECKING:
    from ..doctor.finding import Examination

HELP = "check packages, machine, configuration, model, cache and search; say what to do"
EXAMPLE = "kvboost doctor --cache unix:/run/kvboost.sock"
EXTRA = "runtime"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_config_arguments(parser)
    parser.add_argument("--cache", metavar="ADDRESS", help="host:port or unix:/path of a running cache service")
    parser.add_argument("--model", metavar="MODEL", help="hub id or local directory (default: model.name_or_path)")
    parser.add_argument("--download", action="store_true", help="download the model if it is not on this machine")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Examine everything; 1 if something is broken."""
    from ..doctor.show import as_json, as_text, is_broken

    found = _examine(args)
    print(as_json(found) if args.json else as_text(found))
    return 1 if is_broken(found) else 0


def _examine(args: argparse.Namespace) -> Sequence[Examination]:
    from ..doctor.cache import examine_cache
    from ..doctor.machine import examine_machine
    from ..doctor.model import examine_model, examine_speed
    from ..doctor.search import examine_search
    from ..doctor.settings import examine_settings
    from ..doctor.software import examine_software

    config, settings = examine_settings(args, cache__address=args.cache, model__name_or_path=args.model)
    found = [examine_software(), examine_machine(config.cache.max_bytes), settings]
    model, check = examine_model(config, args.download)
    cache, handed = examine_cache(config, check.support.layout if check is not None else None)
    found += [model, cache]
    if check is not None:
        found.append(examine_speed(check, handed.cost if handed is not None else None))
    return [*found, examine_search(config.embedder)]
