"""``kvboost stats``: the figures of a running cache service, once or as a live view."""

from __future__ import annotations

import argparse
import json
import math
import time
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

from kvboost.errors import CacheUnavailableError

from .config import add_config_arguments, load_from_arguments

if TYPE_CHECKING:
    from kvboost.client import CacheClient
    from kvboost.types import CacheStats

    from ..cache_figures import Rates
    from ..live_view import LiveView

HELP = "print the figures of a running cache service, once or every few seconds"
EXAMPLE = "kvboost stats unix:/run/kvboost/cache.sock --watch"
EXTRA = ""
_INTERVAL_S = 2.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_config_arguments(parser)
    parser.add_argument(
        "address", nargs="?", help="host:port or unix:/path (default: cache.address, or server.cache_address)"
    )
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=_seconds,
        const=_INTERVAL_S,
        help=f"look again every so many seconds (default: {_INTERVAL_S:.0f}) until Ctrl-C",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; with --watch a line each time")


def run(args: argparse.Namespace) -> int:
    """Ask and print, once or until interrupted."""
    from kvboost.client import CacheClient

    from ..cache_figures import as_text

    config = load_from_arguments(args).config
    with closing(CacheClient(args.address or config.cache.address or config.server.cache_address)) as client:
        stats = client.stats()
        if args.watch is not None:
            _watch(client, stats, args.watch, args.json)
        else:
            print(json.dumps(asdict(stats), indent=2) if args.json else as_text(stats))
    return 0


def _watch(client: CacheClient, stats: CacheStats, interval_s: float, as_json: bool) -> None:
    """Show ``stats``, then look again and again; a cache that does not answer is told, and asked again."""
    from ..cache_figures import rates
    from ..live_view import LiveView

    view = LiveView()
    try:
        _show(view, stats, None, as_json)
        while True:
            time.sleep(interval_s)
            try:
                now = client.stats()
            except CacheUnavailableError as error:
                print(json.dumps({"error": str(error)}), flush=True) if as_json else view.draw(str(error))
                continue
            _show(view, now, rates(stats, now), as_json)
            stats = now
    except KeyboardInterrupt:
        return


def _show(view: LiveView, stats: CacheStats, happened: Rates | None, as_json: bool) -> None:
    from ..cache_figures import as_plain_line, as_record, as_view

    if as_json:
        print(json.dumps(as_record(stats, happened)), flush=True)
    else:
        view.draw((as_view if view.in_place else as_plain_line)(stats, happened))


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be a number of seconds above 0")
    return number
