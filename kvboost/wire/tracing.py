"""OpenTelemetry, where it is installed and set up: calls carry the trace that they belong to.

The library only speaks OpenTelemetry's API. Whether spans go anywhere is up to the process, for example one that was
started by ``opentelemetry-instrument``. Without a provider nothing is wrapped, and calls cost what they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import grpc


def tracing_is_set_up() -> bool:
    """Whether OpenTelemetry is installed and has a tracer provider; set it up before clients and servers are made."""
    if find_spec("opentelemetry") is None:
        return False
    from opentelemetry import trace

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def traced_channel(channel: grpc.Channel) -> grpc.Channel:
    """Return a channel whose calls are spans and pass their trace on, or ``channel`` itself without tracing."""
    if not tracing_is_set_up():
        return channel
    from kvboost.wire.spans import ClientTracing

    return grpc.intercept_channel(channel, ClientTracing())


def server_interceptors() -> Sequence[grpc.ServerInterceptor]:
    """Return what makes a server's calls spans of their callers' traces; nothing without tracing."""
    if not tracing_is_set_up():
        return ()
    from kvboost.wire.spans import ServerTracing

    return (ServerTracing(),)
