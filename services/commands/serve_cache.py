"""``kvboost serve-cache``: the cache service in this process."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import sys
from typing import TYPE_CHECKING

from kvboost.config import ServerConfig
from kvboost.errors import ConfigError

from .config import add_config_arguments, load_from_arguments

if TYPE_CHECKING:
    from kvboost.client.address import Address

HELP = "serve a chunk cache over gRPC, on TCP and on a unix socket"
EXAMPLE = "kvboost serve-cache --address 127.0.0.1:7461 --unix /run/kvboost/cache.sock --max-bytes 2GiB"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments; each goes over its setting in the configuration."""
    add_config_arguments(parser)
    tcp = parser.add_mutually_exclusive_group()
    tcp.add_argument("--address", metavar="HOST:PORT", help="where to listen on TCP; port 0 takes a free one")
    tcp.add_argument("--no-tcp", action="store_true", help="listen on the unix socket only")
    parser.add_argument("--unix", metavar="PATH", help="where to listen on a unix socket, readable by this user only")
    parser.add_argument("--max-bytes", metavar="SIZE", help="byte budget for K/V, such as 2GiB")
    parser.add_argument("--embedder", metavar="MODEL", help="auto, a hub id, a local directory, or none")
    parser.add_argument("--workers", metavar="N", help="calls that run at the same time")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from ..cache_server import SERVICE_NAME, CacheServicer
    from ..cache_server.build import build_served_cache
    from ..grpc_server import start_server, stop_requested

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
    addresses = _addresses(config.server, tcp=not args.no_tcp)
    cache, info = build_served_cache(config)
    servicer = CacheServicer(cache, info)
    try:
        with stop_requested() as asked:
            server = start_server(
                servicer.register,
                [SERVICE_NAME],
                addresses,
                workers=config.server.max_workers,
                max_concurrent_rpcs=8 * config.server.max_workers,
            )
            print("listening on " + " and ".join(map(str, server.addresses)), flush=True)
            asked.wait()
            server.stop()
    finally:
        cache.close()
    return 0


def _addresses(server: ServerConfig, tcp: bool) -> list[Address]:
    from kvboost.client.address import parse_address

    addresses = [parse_address(server.cache_address)] if tcp else []
    if server.cache_unix:
        addresses.append(parse_address(f"unix:{os.path.abspath(server.cache_unix)}"))
    if not addresses:
        raise ConfigError("serve-cache has nowhere to listen; give --unix PATH together with --no-tcp")
    if tcp and not _is_loopback(addresses[0].host):
        print(
            f"warning: {addresses[0]} can be reached from other machines, and the service asks nobody for a password",
            file=sys.stderr,
        )
    return addresses


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
