"""Addresses of servers: ``host:port`` or ``unix:/path``."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kvboost.errors import ConfigError

UNIX_PREFIX = "unix:"
# The kernel's limit for a socket's path, its final zero included, is 108 bytes.
_MAX_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class Address:
    """A place to bind or to connect to: a unix socket (``path``) or ``host`` and ``port``."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        return f"{UNIX_PREFIX}{self.path}" if self.path else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``host:port`` (IPv6 in brackets) or ``unix:/path``.

    Raises
    ------
    ConfigError
        If ``text`` is neither.
    """
    if text.startswith(UNIX_PREFIX):
        return Address(path=_checked_path(text))
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"address {text!r} must be host:port or unix:/path, e.g. 127.0.0.1:7420")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError(f"address {text!r} must have its IPv6 host in brackets, e.g. [::1]:7420")
    return Address(host=host, port=int(port))


def _checked_path(text: str) -> str:
    path = text.removeprefix(UNIX_PREFIX)
    if path.startswith("//"):
        path = path[2:]
    if not path:
        raise ConfigError(f"address {text!r} must name a socket file, e.g. unix:/run/kvboost.sock")
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise ConfigError(f"address {text!r} is longer than the {_MAX_PATH_BYTES} bytes that a socket's path may have")
    return path
