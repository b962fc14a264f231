"""``kvboost stats``: the figures of a running cache service."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from kvboost.types import CacheStats, NamespaceStats

from .config import add_config_arguments, load_from_arguments

HELP = "print the figures of a running cache service"
EXAMPLE = "kvboost stats unix:/run/kvboost/cache.sock --json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_config_arguments(parser)
    parser.add_argument(
        "address", nargs="?", help="host:port or unix:/path (default: cache.address, or server.cache_address)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Ask once and print."""
    from kvboost.client import CacheClient

    config = load_from_arguments(args).config
    client = CacheClient(args.address or config.cache.address or config.server.cache_address)
    try:
        stats = client.stats()
    finally:
        client.close()
    print(json.dumps(asdict(stats), indent=2) if args.json else _as_text(stats))
    return 0


def _as_text(stats: CacheStats) -> str:
    share = stats.stored_bytes / stats.max_bytes
    head = f"stored {_size(stats.stored_bytes)} of {_size(stats.max_bytes)} ({share:.1%}), up {stats.uptime_s:.0f} s"
    return "\n".join([head, *(_one(n) for n in stats.namespaces)])


def _one(namespace: NamespaceStats) -> str:
    hits = ", ".join(
        f"{tokens / namespace.query_tokens:.1%} {tier}" for tier, tokens in namespace.hit_tokens.items() if tokens
    )
    tenant = f", tenant {namespace.tenant}" if namespace.tenant else ""
    return (
        f"\n{namespace.model}{tenant} ({namespace.namespace})\n"
        f"  chunks   {namespace.chunks} ({_size(namespace.stored_bytes)}), {namespace.vectors} with a vector, "
        f"{namespace.evicted_chunks} evicted\n"
        f"  queries  {namespace.queries} of {namespace.query_tokens} tokens: {hits or 'no hits'}"
    )


def _size(nbytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"
