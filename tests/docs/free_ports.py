"""Ports that nobody listens on."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack


def free_ports(names: Sequence[str]) -> dict[str, int]:
    """Return a free port for each name, all different; whoever wants it should take it soon."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}
