"""``kvboost serve-runtime``: a model that reuses K/V from a cache service, in this process."""

from __future__ import annotations

import argparse
import logging
import warnings

from kvboost.errors import KVBoostWarning

from ..listen import add_listen_arguments, listen_addresses
from .config import add_config_arguments, load_from_arguments

HELP = "serve a model that reuses cached K/V, over gRPC"
SPARE_WORKERS = 4
EXAMPLE = "kvboost serve-runtime --cache unix:/run/kvboost/cache.sock --address 127.0.0.1:7462"
EXTRA = "runtime"


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
    parser.add_argument(
        "--threads",
        metavar="N",
        type=_positive,
        help="CPU threads that compute (default: one a core)",
    )
    parser.add_argument("--max-batch", metavar="N", help="requests that are answered at the same time")
    parser.add_argument("--max-queue", metavar="N", help="requests that wait beside those; further ones are refused")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from kvboost.runtime.model.machine import set_threads

    from ..grpc_server import start_server
    from ..runtime_server import SERVICE_NAME, RuntimeServicer
    from ..runtime_server.build import served_model
    from ..stopping import stop_requested

    _log()
    config = load_from_arguments(
        args,
        server__runtime_address=args.address,
        server__runtime_unix=args.unix,
        runtime__threads=args.threads,
        runtime__max_batch=args.max_batch,
        runtime__max_queue=args.max_queue,
        model__name_or_path=args.model,
        model__dtype=args.dtype,
        model__device=args.device,
        cache__address=args.cache,
        cache__tenant=args.tenant,
    ).config
    addresses = listen_addresses(config.server.runtime_address, config.server.runtime_unix, no_tcp=args.no_tcp)
    set_threads(config.runtime.threads)
    calls = config.runtime.max_batch + config.runtime.max_queue
    with stop_requested() as asked, served_model(config) as (served, batch):
        # Callers hold a thread each, also while they wait; some more answer Describe and health, and refuse callers.
        server = start_server(
            RuntimeServicer(served, batch).register,
            [SERVICE_NAME],
            addresses,
            workers=calls + SPARE_WORKERS,
            max_concurrent_rpcs=2 * (calls + SPARE_WORKERS),
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
