"""``kvboost serve-gateway``: OpenAI's API over HTTP, in front of runtimes."""

from __future__ import annotations

import argparse
import logging

from kvboost.errors import ConfigError

from .config import add_config_arguments, load_from_arguments

HELP = "serve OpenAI's API over HTTP, metrics and a page, in front of runtimes"
EXAMPLE = "kvboost serve-gateway --runtime 127.0.0.1:7462 --cache 127.0.0.1:7461 --address 127.0.0.1:8000"
EXTRA = "gateway"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_config_arguments(parser)
    parser.add_argument("--address", metavar="HOST:PORT", help="where to listen; port 0 takes a free one")
    parser.add_argument(
        "--runtime",
        metavar="ADDRESS",
        action="append",
        dest="runtimes",
        help="host:port or unix:/path of a runtime; may be repeated (default: server.runtime_address)",
    )
    parser.add_argument("--cache", metavar="ADDRESS", help="cache service whose figures are shown (default: none)")
    parser.add_argument(
        "--refresh", metavar="SECONDS", type=float, default=5.0, help="how often services are asked (default: 5)"
    )
    add_gateway_arguments(parser)


def add_gateway_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``kvboost serve`` takes too."""
    parser.add_argument(
        "--max-requests", metavar="N", type=int, default=64, help="requests served or waiting at a time (default: 64)"
    )
    parser.add_argument(
        "--show-prompts",
        action="store_true",
        help="keep the latest prompts in memory and show their reuse maps with text; anyone who can open the page "
        "can read them",
    )


def gateway_options(args: argparse.Namespace) -> list[str]:
    """Return these arguments as they are written on a command line."""
    return ["--max-requests", str(args.max_requests), *(["--show-prompts"] if args.show_prompts else [])]


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from kvboost.wire.address import parse_address

    from ..gateway.run import GatewayOptions, serve
    from ..listen import listen_addresses
    from ..processes import LISTENING
    from ..stopping import stop_requested

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kvboost").setLevel(logging.INFO)
    config = load_from_arguments(args, server__gateway_address=args.address, cache__address=args.cache).config
    if args.max_requests < 1:
        raise ConfigError(f"--max-requests {args.max_requests} must be at least 1")
    if not args.refresh > 0.0:
        raise ConfigError(f"--refresh {args.refresh} must be above 0: it is a number of seconds")
    (address,) = listen_addresses(config.server.gateway_address, "", no_tcp=False)
    if address.path:
        raise ConfigError(f"the gateway speaks HTTP on TCP only; give host:port instead of {address}")
    runtimes = [str(parse_address(runtime)) for runtime in args.runtimes or [config.server.runtime_address]]
    options = GatewayOptions(runtimes, config.cache.address, args.max_requests, args.show_prompts, args.refresh)
    with stop_requested():  # the server passes its signals on when it has ended
        serve(options, address, lambda url: print(f"{LISTENING}{url}", flush=True))
    return 0
