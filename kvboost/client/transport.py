"""One channel to a cache service: calls with deadlines, failures as typed errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import grpc

from kvboost.deadline import remaining_s
from kvboost.errors import CacheUnavailableError, MessageSizeError
from kvboost.origin import Origin
from kvboost.v1 import cache_pb2 as pb
from kvboost.v1 import cache_pb2_grpc as pb_grpc
from kvboost.wire import frames, pieces
from kvboost.wire.address import parse_address
from kvboost.wire.status import error_of
from kvboost.wire.tracing import traced_channel

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a cache stands in the same network; a proxy for the web is no way to it
    ("grpc.use_local_subchannel_pool", 1),  # no shared back-off with other clients of this process
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

T = TypeVar("T")
Part = frames.Frame | pb.PutHeader


class OutdatedServerError(CacheUnavailableError):
    """The server does not know the call."""


class Transport:
    """Messages to and from the cache at ``address``. Every call may raise what the server answers.

    A call takes ``timeout_s`` at most, or what :func:`kvboost.deadline.within` leaves of it.

    Raises
    ------
    ConfigError
        If ``address`` is neither ``host:port`` nor ``unix:/path``.
    """

    def __init__(self, address: str) -> None:
        self.address = str(parse_address(address))
        self._closed = False
        self._origin = Origin()
        self._channel = traced_channel(grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS))
        stub: Any = pb_grpc.CacheServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._describe: Callable[..., pb.DescribeResponse] = stub.Describe
        self._match: Callable[..., pb.MatchResponse] = stub.Match
        self._offer: Callable[..., pb.OfferResponse] = stub.Offer
        self._evict: Callable[..., pb.EvictResponse] = stub.Evict
        self._drop: Callable[..., pb.DropResponse] = stub.Drop
        self._stats: Callable[..., pb.StatsResponse] = stub.Stats
        self._large: Callable[..., Iterator[pb.Piece]] = stub.Large
        self._fetch = self._channel.unary_stream(
            "/kvboost.v1.CacheService/Fetch",
            request_serializer=pb.FetchRequest.SerializeToString,
            response_deserializer=frames.decode,
        )
        self._lease: Callable[..., Any] = stub.Lease
        self._put: Callable[..., pb.PutResponse] = self._channel.stream_unary(
            "/kvboost.v1.CacheService/Put",
            request_serializer=frames.encode_put,
            response_deserializer=pb.PutResponse.FromString,
        )

    def describe(self, request: pb.DescribeRequest, timeout_s: float) -> pb.DescribeResponse:
        """Call ``Describe``."""
        return self._call(self._describe, request, timeout_s)

    def match(self, request: pb.MatchRequest, timeout_s: float) -> pb.MatchResponse:
        """Call ``Match``."""
        return self._of_any_size("Match", self._match, request, pb.MatchResponse, timeout_s)

    def offer(self, request: pb.OfferRequest, timeout_s: float) -> pb.OfferResponse | None:
        """Call ``Offer``; None from a server that does not know it."""
        try:
            return self._of_any_size("Offer", self._offer, request, pb.OfferResponse, timeout_s)
        except OutdatedServerError:
            return None

    def evict(self, request: pb.EvictRequest, timeout_s: float) -> pb.EvictResponse:
        """Call ``Evict``."""
        return self._of_any_size("Evict", self._evict, request, pb.EvictResponse, timeout_s)

    def drop(self, request: pb.DropRequest, timeout_s: float) -> pb.DropResponse:
        """Call ``Drop``."""
        return self._call(self._drop, request, timeout_s)

    def stats(self, request: pb.StatsRequest, timeout_s: float) -> pb.StatsResponse:
        """Call ``Stats``."""
        return self._of_any_size("Stats", self._stats, request, pb.StatsResponse, timeout_s)

    def fetch(self, request: pb.FetchRequest, timeout_s: float) -> Iterator[frames.Frame]:
        """Yield the frames of a ``Fetch``; the call is cancelled when the caller stops reading."""
        pieces.check_size(request, "the ids of the chunks", pieces.MAX_MESSAGE_BYTES, "fetch fewer at a time")
        with self._failures():
            call = self._fetch(request, timeout=self._left(timeout_s))
            try:
                yield from call
            finally:
                call.cancel()

    def lease(self, requests: Iterator[pb.LeaseRequest]) -> Any:
        """Start a ``Lease``; return gRPC's own call object, which has no deadline."""
        with self._failures():
            return self._lease(requests)

    def put(self, parts: Iterator[Part], timeout_s: float) -> pb.PutResponse:
        """Send the parts of a ``Put``."""
        return self._call(self._put, parts, timeout_s)

    def close(self) -> None:
        """Close the channel; a call under way ends, a later one fails. In a forked child it is left to its parent."""
        self._closed = True
        if not self._origin.refusal("the channel"):
            self._channel.close()

    def _of_any_size(
        self, name: str, method: Callable[..., T], request: pieces.Message, kind: type[T], timeout_s: float
    ) -> T:
        """Call ``method``; in pieces, if the request or the answer is too large for one message."""
        end_s = time.monotonic() + timeout_s
        if not pieces.is_large(request):
            try:
                return self._call(method, request, timeout_s)
            except MessageSizeError:
                pass  # the answer is what is too large
        pieces.check_size(request, f"the request of {name}", pieces.MAX_LARGE_BYTES, "ask for less at a time")
        with self._failures():
            sent = pieces.split(request, name)
            _, data = pieces.join(self._large(sent, timeout=self._left(end_s - time.monotonic())))
        return cast("T", cast("Any", kind).FromString(data))

    def _call(self, method: Callable[..., T], request: object, timeout_s: float) -> T:
        with self._failures():
            return method(request, timeout=self._left(timeout_s))

    def _left(self, timeout_s: float) -> float:
        """Return how long a call may take that begins now, inside what the request has left."""
        left_s = min(timeout_s, remaining_s())
        if left_s <= 0:
            raise CacheUnavailableError(f"the request has no time left for the cache at {self.address}")
        return left_s

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what gRPC raises into typed errors; a forked child is told at once, where gRPC would wait for ever."""
        if refusal := self._origin.refusal(f"the client of {self.address}"):
            raise CacheUnavailableError(refusal)
        try:
            yield
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise OutdatedServerError(
                    f"the server at {self.address} is older than this client; update it"
                ) from None
            raise error_of(failure, self.address) from None
        except ValueError:
            if not self._closed:
                raise
            raise CacheUnavailableError(f"the client of {self.address} was closed; make a new one") from None
