"""The streams that leases hang on: a client that dies ends its stream, and with it every pin."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc

from kvboost.v1 import cache_pb2 as pb

from .leases import Leases


class LeaseStreams:
    """The handler of ``Lease``. Each stream takes a thread for as long as its client is there."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._lock = threading.Lock()
        self._open: set[grpc.ServicerContext] = set()

    def __call__(
        self, requests: Iterator[pb.LeaseRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.LeaseResponse]:
        """Say where segments are; then listen until the client is gone."""
        hello = self._leases.open()
        with self._lock:
            self._open.add(context)
        try:
            # Called at once when the stream ends; the loop below may see that later.
            if context.add_callback(lambda: self._leases.end(hello.lease)):
                yield hello
                for request in requests:
                    self._leases.hear(hello.lease, request.released, request.held)
        finally:
            self._leases.end(hello.lease)
            with self._lock:
                self._open.discard(context)

    def close(self) -> None:
        """End every stream; further ones are refused."""
        self._leases.close()
        with self._lock:
            contexts = list(self._open)
        for context in contexts:
            context.cancel()
