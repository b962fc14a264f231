"""Where a serving command listens: options, and the addresses that they mean."""

from __future__ import annotations

import argparse
import ipaddress
import os
import sys
from typing import TYPE_CHECKING

from kvboost.errors import ConfigError

if TYPE_CHECKING:
    from kvboost.wire.address import Address


def add_listen_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--address``, ``--no-tcp`` and ``--unix``."""
    tcp = parser.add_mutually_exclusive_group()
    tcp.add_argument("--address", metavar="HOST:PORT", help="where to listen on TCP; port 0 takes a free one")
    tcp.add_argument("--no-tcp", action="store_true", help="listen on the unix socket only")
    parser.add_argument("--unix", metavar="PATH", help="where to listen on a unix socket, readable by this user only")


def listen_addresses(tcp_address: str, unix_path: str, *, no_tcp: bool) -> list[Address]:
    """Return the addresses to listen on; warn on stderr if other machines can reach one.

    Parameters
    ----------
    tcp_address
        ``host:port``; unused with ``no_tcp``.
    unix_path
        Path of a socket, or empty for none.

    Raises
    ------
    ConfigError
        If there are none.
    """
    from kvboost.wire.address import parse_address

    addresses = [] if no_tcp else [parse_address(tcp_address)]
    if unix_path:
        addresses.append(parse_address(f"unix:{os.path.abspath(unix_path)}"))
    if not addresses:
        raise ConfigError("there is nowhere to listen; give --unix PATH together with --no-tcp")
    if not no_tcp and not _is_loopback(addresses[0].host):
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
