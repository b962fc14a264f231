"""The cache service's methods: messages in, a :class:`~kvboost.protocols.ChunkCache` asked, messages out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc

from kvboost.errors import InputError, QuotaError
from kvboost.protocols import ChunkCache, PutJudge
from kvboost.types import CacheInfo, PutReceipt
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire import assemble, convert, convert_figures, frames

from ..grpc_lanes import Lane, in_lane
from .lanes import CacheLanes, cache_lanes
from .large import LargeCalls, fitting
from .lease_streams import LeaseStreams
from .leases import Leases
from .promises import Promises
from .staging import Staging, read_chunks, read_header

_PROMISE_S = 10.0
_HANDLES = 4096  # in one message, which takes some 400 KiB then
SERVICE_NAME = pb.DESCRIPTOR.services_by_name["CacheService"].full_name


class CacheServicer:
    """Serves ``cache``; errors are raised as they are, for the interceptor to translate.

    Parameters
    ----------
    cache
        Answers every call. Stays the caller's to close.
    info
        What a caller is told that opens no namespace.
    leases
        For clients on this host, if the cache keeps its payloads in shared memory; None sends everybody frames.
    lanes
        Threads for each kind of call; None for the usual ones.
    """

    def __init__(
        self, cache: ChunkCache, info: CacheInfo, leases: Leases | None = None, lanes: CacheLanes | None = None
    ) -> None:
        self._cache = cache
        self._info = info
        self._staging = Staging(info.max_bytes)
        self._leases = leases
        self._lanes = lanes or cache_lanes(max_leases=leases.max_leases if leases is not None else 0)
        self._promises = Promises(min(self._lanes.puts.limits.idle_s, _PROMISE_S))
        self._streams = LeaseStreams(leases) if leases is not None else None

    def register(self, server: grpc.Server) -> None:
        """Add this service to ``server``."""
        lanes = self._lanes
        lease = self._streams if self._streams is not None else _no_lease
        large = LargeCalls(
            {
                "Match": (self.match, pb.MatchRequest),
                "Offer": (self.offer, pb.OfferRequest),
                "Evict": (self.evict, pb.EvictRequest),
                "Stats": (self.stats, pb.StatsRequest),
            }
        )
        handlers = {
            "Describe": _unary(lanes.figures, self.describe, pb.DescribeRequest, pb.DescribeResponse),
            "Stats": _unary(lanes.figures, self.stats, pb.StatsRequest, pb.StatsResponse),
            "Match": _unary(lanes.lookups, self.match, pb.MatchRequest, pb.MatchResponse),
            "Offer": _unary(lanes.lookups, self.offer, pb.OfferRequest, pb.OfferResponse),
            "Evict": _unary(lanes.changes, self.evict, pb.EvictRequest, pb.EvictResponse),
            "Drop": _unary(lanes.changes, self.drop, pb.DropRequest, pb.DropResponse),
            "Fetch": grpc.unary_stream_rpc_method_handler(
                in_lane(lanes.fetches, self.fetch), pb.FetchRequest.FromString, frames.encode
            ),
            "Put": grpc.stream_unary_rpc_method_handler(
                in_lane(lanes.puts, self.put), frames.decode_put, pb.PutResponse.SerializeToString
            ),
            "Large": grpc.stream_stream_rpc_method_handler(
                in_lane(lanes.large, large), pb.Piece.FromString, pb.Piece.SerializeToString
            ),
            "Lease": grpc.stream_stream_rpc_method_handler(
                in_lane(lanes.leases, lease), pb.LeaseRequest.FromString, pb.LeaseResponse.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    def close(self) -> None:
        """End the leases, so that a server that stops does not wait for clients that are idle."""
        if self._streams is not None:
            self._streams.close()

    def describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.DescribeResponse:
        """Open the namespace, if there is one."""
        info = self._info
        if request.HasField("namespace"):
            info = self._cache.open(convert.namespace_from_proto(request.namespace))
        return pb.DescribeResponse(info=convert_figures.info_to_proto(info))

    def match(self, request: pb.MatchRequest, context: grpc.ServicerContext) -> pb.MatchResponse:
        """Find donors."""
        return convert.result_to_proto(self._cache.match(convert.query_from_proto(request)))

    def fetch(self, request: pb.FetchRequest, context: grpc.ServicerContext) -> Iterator[frames.Frame | pb.Frame]:
        """Tell where chunks lie, or stream them while the caller is there and its deadline has not passed."""
        _check_namespace(request.namespace)
        chunks = self._cache.fetch(request.namespace, request.chunk_ids)
        if request.parts > 1:
            yield from _while_active(context, frames.split_parts(list(chunks), request.parts))
            return
        if request.lease and self._leases is not None:
            handles, chunks = self._leases.pin(request.lease, chunks)
            for start in range(0, len(handles), _HANDLES):
                yield pb.Frame(handles=handles[start : start + _HANDLES])
        for chunk in chunks:
            yield from _while_active(context, frames.split(chunk.chunk_id, chunk.payload, chunk.checksum))
            if not context.is_active():
                return

    def offer(self, request: pb.OfferRequest, context: grpc.ServicerContext) -> pb.OfferResponse:
        """Say which chunks to send: those that are wanted, and that nobody else is about to send."""
        _check_namespace(request.namespace)
        offered = convert.offer_from_proto(request)
        if not isinstance(self._cache, PutJudge):
            return pb.OfferResponse(wanted=range(len(offered.chunks)))
        verdicts = self._cache.judge(offered)
        wanted = [i for i, verdict in enumerate(verdicts) if verdict.wanted]
        promise, free = self._promises.claim([verdicts[i].identity for i in wanted])
        there = sum(verdict.duplicate for verdict in verdicts)
        receipt = PutReceipt(duplicate=there + free.count(False), over_variants=len(verdicts) - len(wanted) - there)
        return pb.OfferResponse(
            wanted=[i for i, yes in zip(wanted, free, strict=True) if yes],
            receipt=convert_figures.receipt_to_proto(receipt),
            offer=promise,
        )

    def put(self, parts: Iterator[frames.Frame | pb.PutHeader], context: grpc.ServicerContext) -> pb.PutResponse:
        """Take chunks; nothing is stored unless all of them arrived whole."""
        header = read_header(parts)
        with self._promises.kept(header.offer, len(header.chunks)):
            return self._put(header, parts)

    def _put(self, header: pb.PutHeader, parts: Iterator[frames.Frame | pb.PutHeader]) -> pb.PutResponse:
        _check_namespace(header.namespace)
        self._cache.evict(header.namespace, ())  # an unknown namespace is refused before its bytes come
        memory = assemble.empty
        if self._leases is not None:
            self._leases.expire()
            memory = partial(self._leases.memory, header.namespace)
        with self._staging.put(sum(chunk.nbytes for chunk in header.chunks)) as take:
            receipt = self._cache.put(read_chunks(header, parts, take, memory))
        return pb.PutResponse(receipt=convert_figures.receipt_to_proto(receipt))

    def evict(self, request: pb.EvictRequest, context: grpc.ServicerContext) -> pb.EvictResponse:
        """Remove chunks."""
        _check_namespace(request.namespace)
        return pb.EvictResponse(evicted=self._cache.evict(request.namespace, request.chunk_ids))

    def drop(self, request: pb.DropRequest, context: grpc.ServicerContext) -> pb.DropResponse:
        """Forget a namespace."""
        _check_namespace(request.namespace)
        return pb.DropResponse(dropped=self._cache.drop(request.namespace))

    def stats(self, request: pb.StatsRequest, context: grpc.ServicerContext) -> pb.StatsResponse:
        """Tell the figures."""
        return pb.StatsResponse(stats=convert_figures.stats_to_proto(self._cache.stats()))


def _unary(lane: Lane, method: Callable[..., Any], request: Any, response: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        in_lane(lane, fitting(method)), request.FromString, response.SerializeToString
    )


def _while_active(context: grpc.ServicerContext, sent: Iterator[frames.Frame]) -> Iterator[frames.Frame]:
    for frame in sent:
        if not context.is_active():
            return
        yield frame


def _no_lease(requests: object, context: object) -> Iterator[pb.LeaseResponse]:
    raise QuotaError("this cache keeps its K/V in memory of its own; fetch without a lease")


def _check_namespace(key: str) -> None:
    if not key:
        raise InputError("namespace must be the key of an open namespace; it is empty")
