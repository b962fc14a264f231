"""``kvboost serve-cache``: the cache service in this process."""

from __future__ import annotations

import argparse
import logging

from ..listen import add_listen_arguments, listen_addresses
from .config import add_config_arguments, load_from_arguments

HELP = "serve a chunk cache over gRPC, on TCP and on a unix socket"
EXAMPLE = "kvboost serve-cache --address 127.0.0.1:7461 --unix /run/kvboost/cache.sock --max-bytes 2GiB"
EXTRA = "cache"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments; each goes over its setting in the configuration."""
    add_config_arguments(parser)
    add_listen_arguments(parser)
    parser.add_argument("--max-bytes", metavar="SIZE", help="byte budget for K/V, such as 2GiB")
    parser.add_argument("--embedder", metavar="MODEL", help="auto, a hub id, a local directory, or none")
    parser.add_argument("--workers", metavar="N", help="look-ups, puts and fetches that run at the same time, each")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from ..cache_server import SERVICE_NAME, CacheServicer
    from ..cache_server.build import build_arena, build_leases, build_served_cache
    from ..cache_server.lanes import cache_lanes
    from ..grpc_server import start_server
    from ..stopping import stop_requested

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kvboost").setLevel(logging.INFO)
    config = load_from_arguments(
        args,
        server__cache_address=args.address,
        server__cache_unix=args.unix,
        server__max_workers=args.workers,
        cache__max_bytes=args.max_bytes,
        embedder__model=args.embedder,
    ).config
    addresses = listen_addresses(config.server.cache_address, config.server.cache_unix, no_tcp=args.no_tcp)
    arena = build_arena(config.cache)
    cache, info = build_served_cache(config, arena)
    lanes = cache_lanes(
        config.server.max_workers, idle_s=config.server.idle_timeout_s, stream_s=config.server.stream_timeout_s
    )
    servicer = CacheServicer(cache, info, build_leases(arena, config.cache.max_bytes), lanes)
    try:
        with stop_requested() as asked:
            server = start_server(servicer.register, [SERVICE_NAME], addresses)
            print("listening on " + " and ".join(map(str, server.addresses)), flush=True)
            asked.wait()
            servicer.close()
            server.stop()
    finally:
        cache.close()
    return 0
