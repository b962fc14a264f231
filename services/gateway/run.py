"""The gateway as a server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn

from kvboost.client import CacheClient
from kvboost.errors import ConfigError
from kvboost.wire.address import Address

from .app import make_app
from .metrics import RequestMetrics
from .recent import Recent
from .runtimes import Runtimes
from .scraped import ServiceCollector
from .serving import Gateway
from .watch import INTERVAL_S, Watch

_GRACE_S = 5
_CACHE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """What a gateway is told.

    Attributes
    ----------
    runtimes
        Addresses, at least one.
    cache
        Address of the cache service whose figures are shown; empty for none.
    max_requests
        Requests at a time.
    show_prompts
        Whether the page shows the latest prompts' texts.
    refresh_s
        How often the services are asked for their figures.
    """

    runtimes: Sequence[str]
    cache: str = ""
    max_requests: int = 64
    show_prompts: bool = False
    refresh_s: float = INTERVAL_S


def make_gateway(options: GatewayOptions) -> Gateway:
    """Join the parts; nothing is asked yet."""
    runtimes = Runtimes(options.runtimes, options.max_requests)
    cache = CacheClient(options.cache, timeout_s=_CACHE_TIMEOUT_S) if options.cache else None
    watch = Watch(runtimes, cache)
    metrics = RequestMetrics(lambda: runtimes.in_flight)
    metrics.registry.register(ServiceCollector(watch))
    return Gateway(runtimes, watch, metrics, Recent(), options.show_prompts)


def serve(options: GatewayOptions, address: Address, on_listening: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``on_listening`` is told the URL.

    Raises
    ------
    ConfigError
        If ``address`` cannot be used.
    """
    listener = _listen(address)
    port = listener.getsockname()[1]
    gateway = make_gateway(options)
    try:
        config = uvicorn.Config(
            make_app(gateway, options.refresh_s),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        on_listening(f"http://{address.host}:{port}")
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        gateway.close()
        listener.close()


def _listen(address: Address) -> socket.socket:
    host = address.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, address.port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}; choose an address of this machine that is free") from error
