"""A gRPC server process: where it listens, health, reflection, and how it ends."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kvboost.errors import ConfigError
from kvboost.wire.address import Address
from kvboost.wire.tracing import server_interceptors

from .grpc_errors import ErrorInterceptor
from .grpc_lanes import Lane, LaneInterceptor

_OPTIONS = (("grpc.so_reuseport", 0),)  # or a second server on the same port would start, and share its calls


@dataclass(frozen=True)
class GrpcServer:
    """A started server; ``addresses`` are those that it listens on, with the port that the system chose for 0."""

    addresses: tuple[Address, ...]
    _server: grpc.Server
    _health: health.HealthServicer
    _lanes: LaneInterceptor

    def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new calls, let those under way end for ``grace_s`` seconds, remove socket files."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait()
        self._lanes.close()
        for address in self.addresses:
            if address.path:
                with suppress(FileNotFoundError):  # gRPC removes it too, in some versions
                    os.unlink(address.path)


def start_server(
    register: Callable[[grpc.Server], None],
    services: Sequence[str],
    addresses: Sequence[Address],
    *,
    workers: int = 8,
    max_concurrent_rpcs: int = 64,
) -> GrpcServer:
    """Start a server on all of ``addresses``.

    Parameters
    ----------
    register
        Adds the servicers to the server.
    services
        Full names of these services, for health and reflection.
    addresses
        At least one. Socket files get mode 0600; one left behind by a dead server is replaced.
    workers
        Calls that run at the same time, of those whose handlers name no lane (:func:`.grpc_lanes.in_lane`).
    max_concurrent_rpcs
        Such calls that run or wait; further ones are refused with RESOURCE_EXHAUSTED.

    Raises
    ------
    ConfigError
        If an address cannot be used, or none is given.
    """
    if not addresses:
        raise ConfigError("a server needs an address to listen on; give host:port, a unix socket's path, or both")
    lanes = LaneInterceptor(Lane("grpc", workers, max(0, max_concurrent_rpcs - workers)))
    server = grpc.server(
        lanes.default_pool,
        interceptors=(lanes, *server_interceptors(), ErrorInterceptor()),
        options=_OPTIONS,
    )
    register(server)
    # Watchers of health wait without a thread.
    health_servicer = health.HealthServicer(experimental_non_blocking=True)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection((*services, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    bound = tuple(_bind(server, address) for address in addresses)
    server.start()
    for name in ("", *services):
        health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    return GrpcServer(bound, server, health_servicer, lanes)


def _bind(server: grpc.Server, address: Address) -> Address:
    if not address.path:
        port = _add_port(server, address)
        return Address(host=address.host, port=port)
    _clear_stale_socket(address)
    with _umask(0o177):
        _add_port(server, address)
    return address


def _add_port(server: grpc.Server, address: Address) -> int:
    try:
        return int(server.add_insecure_port(str(address)))
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {address}; choose an address of this machine that is free") from error


def _clear_stale_socket(address: Address) -> None:
    """Remove the socket file of a dead server; refuse to replace a live one, or another kind of file."""
    try:
        mode = os.stat(address.path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {address}: a file that is no socket is there; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
            return
    raise ConfigError(f"cannot listen on {address}: a server is listening there; stop it or choose another path")


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
