"""The runtimes behind the gateway: which of them answers, and connections to them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePath

from kvboost.client import RuntimeClient
from kvboost.client.runtime_types import RuntimeInfo
from kvboost.errors import KVBoostError, RuntimeUnavailableError

from .errors import BusyError, UnknownModelError

DESCRIBE_TIMEOUT_S = 2.0


@dataclass
class Runtime:
    """One runtime; ``info`` is what it last said of itself, None while it does not answer."""

    address: str
    info: RuntimeInfo | None = None
    in_flight: int = 0
    idle: list[RuntimeClient] = field(default_factory=list)


class Seat:
    """A place for one request at a runtime, with a connection that no other request uses meanwhile.

    A connection of its own, so that closing it ends this request and none else, even before its first token.

    Attributes
    ----------
    model, tenant
        Public name of the runtime's model, and whom its K/V belong to.
    """

    def __init__(self, pool: Runtimes, runtime: Runtime, client: RuntimeClient) -> None:
        self.address = runtime.address
        self.client = client
        self.model = public_name(runtime.info.model) if runtime.info else ""
        self.tenant = runtime.info.namespace.tenant if runtime.info else ""
        self._pool = pool
        self._runtime = runtime
        self._given_up = False

    def give_up(self) -> None:
        """End the request under way; safe to call from any thread."""
        self._given_up = True
        self.client.close()

    def leave(self) -> None:
        """Free the place; the connection is kept for the next request unless this one was given up."""
        self._pool.take_back(self._runtime, None if self._given_up else self.client)


class Runtimes:
    """All runtimes. Safe to use from several threads.

    Parameters
    ----------
    addresses
        At least one, ``host:port`` or ``unix:/path``.
    max_requests
        Requests at a time; further ones are refused.

    Raises
    ------
    ConfigError
        If an address is neither form.
    """

    def __init__(self, addresses: Sequence[str], max_requests: int) -> None:
        self._lock = threading.Lock()
        self._runtimes = [Runtime(address) for address in dict.fromkeys(addresses)]
        self._watchers = {
            address: RuntimeClient(address, timeout_s=DESCRIBE_TIMEOUT_S) for address in dict.fromkeys(addresses)
        }
        self.max_requests = max_requests
        self.executor = ThreadPoolExecutor(max_requests, thread_name_prefix="request")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where they are."""
        return tuple(self._watchers)

    def refresh(self) -> dict[str, RuntimeInfo | None]:
        """Ask every runtime what it is; None for those that do not answer."""
        infos: dict[str, RuntimeInfo | None] = {}
        for address, client in self._watchers.items():
            try:
                infos[address] = client.describe()
            except KVBoostError:
                infos[address] = None
        with self._lock:
            for runtime in self._runtimes:
                runtime.info = infos[runtime.address]
        return infos

    def models(self) -> list[str]:
        """Return the names of the models that are served."""
        with self._lock:
            return sorted({public_name(runtime.info.model) for runtime in self._runtimes if runtime.info})

    @property
    def in_flight(self) -> int:
        """Requests that are being served."""
        with self._lock:
            return sum(runtime.in_flight for runtime in self._runtimes)

    def seat(self, model: str, tried: Collection[str] = ()) -> Seat:
        """Take a place at the runtime of ``model`` with the fewest requests.

        Parameters
        ----------
        tried
            Addresses of runtimes that failed this request already.

        Raises
        ------
        UnknownModelError
            If none serves that model.
        RuntimeUnavailableError
            If none answers.
        BusyError
            If as many requests as may be are being served.
        """
        with self._lock:
            runtime = self._choose(model, tried)
            if sum(one.in_flight for one in self._runtimes) >= self.max_requests:
                raise BusyError(f"{self.max_requests} requests are being served already; try again later")
            runtime.in_flight += 1
            client = runtime.idle.pop() if runtime.idle else RuntimeClient(runtime.address)
        return Seat(self, runtime, client)

    def take_back(self, runtime: Runtime, client: RuntimeClient | None) -> None:
        """Note that a request has ended, and keep its connection if it is still good."""
        with self._lock:
            runtime.in_flight -= 1
            if client is not None:
                runtime.idle.append(client)

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            clients = [*self._watchers.values(), *(c for runtime in self._runtimes for c in runtime.idle)]
        for client in clients:
            client.close()
        self.executor.shutdown(wait=False, cancel_futures=True)

    def _choose(self, model: str, tried: Collection[str]) -> Runtime:
        known = [runtime for runtime in self._runtimes if runtime.info is not None]
        fitting = [r for r in known if r.info and model in (r.info.model, public_name(r.info.model))]
        left = [runtime for runtime in fitting if runtime.address not in tried]
        if not known or (fitting and not left):
            raise RuntimeUnavailableError(
                f"no runtime answers at {', '.join(self.addresses)}; start one with: kvboost serve-runtime"
            )
        if not fitting:
            served = ", ".join(sorted({public_name(r.info.model) for r in known if r.info}))
            raise UnknownModelError(f"model {model!r} is not served here; choose one of {served}")
        return min(left, key=lambda runtime: runtime.in_flight)


def public_name(model: str) -> str:
    """Return the name that HTTP clients see: of a directory its last part, of a hub id all of it."""
    return PurePath(model).name if model.startswith(("/", "./", "../", "~")) else model
