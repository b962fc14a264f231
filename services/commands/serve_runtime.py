"""``kvboost serve-runtime``: a model that reuses K/V from a cache service, in this process."""

from __future__ import annotations

import argparse
import logging
import warnings

from kvboost.errors import KVBoostWarning

from ..listen import add_listen_arguments, listen_addresses
from .config import add_config_arguments, load_from_arguments

HELP = "serve a model that reuses cached K/V, over gRPC"
EXAMPLE = "kvboost serve-runtime --cache unix:/run/kvboost/cache.sock --address 127.0.0.1:7462"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments; each goes over its setting in the configuration."""
    add_config_arguments(parser)
    add_listen_arguments(parser)
    parser.add_argument("--model", metavar="NAME", help="hub id or local directory (default: the demo model)")
    parser.add_argument("--dtype", help="of weights and K/V: auto, float32, float16 or bfloat16")
    parser.add_argument("--device", help="where the model runs, as torch names it, or auto")
    parser.add_argument(
        "--cache", metavar="ADDRESS", help="host:port or unix:/path of the cache service (default: one in this process)"
    )
    parser.add_argument("--tenant", metavar="NAME", help="K/V are never shared between tenants")
    parser.add_argument("--threads", metavar="N", type=_positive, help="CPU threads that compute (default: torch's)")
    parser.add_argument("--workers", metavar="N", help="calls that wait or are served at the same time")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from kvboost.runtime.answer import set_threads

    from ..grpc_server import start_server, stop_requested
    from ..runtime_server import SERVICE_NAME, RuntimeServicer
    from ..runtime_server.build import served_model
    from ..runtime_server.turns import Turns

    _log()
    config = load_from_arguments(
        args,
        server__runtime_address=args.address,
        server__runtime_unix=args.unix,
        server__max_workers=args.workers,
        model__name_or_path=args.model,
        model__dtype=args.dtype,
        model__device=args.device,
        cache__address=args.cache,
        cache__tenant=args.tenant,
    ).config
    addresses = listen_addresses(config.server.runtime_address, config.server.runtime_unix, no_tcp=args.no_tcp)
    if args.threads:
        set_threads(args.threads)
    turns = Turns(config.server.max_workers)
    with stop_requested() as asked, served_model(config, turns) as served:
        # Callers that wait for their turn hold a thread each; two more answer Describe and health meanwhile.
        server = start_server(
            RuntimeServicer(served, turns).register,
            [SERVICE_NAME],
            addresses,
            workers=config.server.max_workers + 2,
            max_concurrent_rpcs=8 * config.server.max_workers,
        )
        print("listening on " + " and ".join(map(str, server.addresses)), flush=True)
        asked.wait()
        server.stop()
    return 0


def _log() -> None:
    """Log warnings, each time: a second request without its cache is news too."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kvboost").setLevel(logging.INFO)
    logging.captureWarnings(True)
    warnings.simplefilter("always", KVBoostWarning)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number
