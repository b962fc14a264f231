"""A chunk cache behind gRPC."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from kvboost.client.fetched import chunks
from kvboost.client.lease import Lease
from kvboost.client.lease_keeper import LeaseKeeper
from kvboost.client.parts import read_parts
from kvboost.client.putting import batches, check_payloads, nbytes_of, parts_of, total
from kvboost.client.segments import SegmentError
from kvboost.client.transport import Transport
from kvboost.errors import DataLossError, InputError, UnknownNamespaceError
from kvboost.types import (
    CacheInfo,
    CacheStats,
    ChunkKV,
    ChunkPart,
    Handover,
    MatchQuery,
    MatchResult,
    Namespace,
    NewChunk,
    PutReceipt,
    PutRequest,
)
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire import convert, convert_figures
from kvboost.wire.checks import check_count, check_seconds
from kvboost.wire.pieces import MAX_MESSAGE_BYTES, check_size

PUT_CALL_BYTES = 64 << 20

T = TypeVar("T")


class CacheClient:
    """A :class:`~kvboost.protocols.ChunkCache` in another process.

    Connects lazily, and again by itself after the server was away; namespaces that it opened are announced again
    to a server that forgot them. Safe to use from several threads. Not usable across ``fork()``: make the client
    in the child, or start children with the ``spawn`` method.

    Every call has a deadline: its own, or what is left of the caller's budget for several calls together, given with
    ``with kvboost.deadline.within(seconds):`` around them.

    Parameters
    ----------
    address
        ``host:port`` or ``unix:/path``.
    timeout_s
        Deadline of the small calls: ``open``, ``evict``, ``drop``, ``stats``.
    match_timeout_s
        Deadline of a look-up; the server may have to embed chunks for it.
    fetch_timeout_s
        Deadline of a whole fetch; the caller's own work between two chunks counts.
    put_timeout_s
        Deadline for each 64 MiB of a put.
    shared_memory
        Whether fetched K/V are read where the server keeps them, without a copy, when it runs on this host with its
        files in sight. False, or wherever that fails: they are sent.

    Raises
    ------
    ConfigError
        If ``address`` is neither form.
    InputError
        If a deadline is not positive.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 5.0,
        match_timeout_s: float = 10.0,
        fetch_timeout_s: float = 30.0,
        put_timeout_s: float = 60.0,
        shared_memory: bool = True,
    ) -> None:
        self._timeout_s = check_seconds(timeout_s, "timeout_s")
        self._match_timeout_s = check_seconds(match_timeout_s, "match_timeout_s")
        self._fetch_timeout_s = check_seconds(fetch_timeout_s, "fetch_timeout_s")
        self._put_timeout_s = check_seconds(put_timeout_s, "put_timeout_s")
        self._transport = Transport(address)
        self._lock = threading.Lock()
        self._opened: dict[str, tuple[Namespace, CacheInfo]] = {}
        self._leases = LeaseKeeper(self._transport.lease, shared_memory)
        self._handover: Handover | None = None
        # The lease's thread would keep the connection of a client that was forgotten without being closed.
        weakref.finalize(self, self._leases.close)

    @property
    def address(self) -> str:
        """Where the cache is, as gRPC was told."""
        return self._transport.address

    @property
    def handover(self) -> Handover:
        """How the last fetched K/V came here; before the first, how they would."""
        if self._handover is None:
            return Handover.FRAMES if self._leases.current() is None else Handover.SHARED_MEMORY
        return self._handover

    def describe(self) -> CacheInfo:
        """Ask what the cache is, without opening a namespace."""
        return convert_figures.info_from_proto(self._transport.describe(pb.DescribeRequest(), self._timeout_s).info)

    def open(self, namespace: Namespace) -> CacheInfo:
        """Make ``namespace`` known."""
        request = pb.DescribeRequest(namespace=convert.namespace_to_proto(namespace))
        info = convert_figures.info_from_proto(self._transport.describe(request, self._timeout_s).info)
        with self._lock:
            self._opened[namespace.key] = (namespace, info)
        return info

    def match(self, query: MatchQuery) -> MatchResult:
        """Find donors for a prompt's chunks, in one round trip."""
        request = convert.query_to_proto(query)
        response = self._reopening(query.namespace, lambda: self._transport.match(request, self._match_timeout_s))
        return convert.result_from_proto(response)

    def fetch(self, namespace: str, chunk_ids: Sequence[int]) -> Iterator[ChunkKV]:
        """Yield the K/V of the chunks that are still there, in the order asked, in one round trip."""

        def first() -> tuple[Iterator[ChunkKV], ChunkKV | None]:
            lease = self._leases.current()
            if lease is not None:
                try:
                    return self._first(namespace, chunk_ids, lease)
                except SegmentError as error:
                    self._leases.drop(lease, error)
            return self._first(namespace, chunk_ids, None)

        # A server knows the namespace or refuses before the first frame.
        stream, chunk = self._reopening(namespace, first)
        while chunk is not None:
            self._handover = chunk.handover
            yield chunk
            chunk = next(stream, None)

    def fetch_parts(self, namespace: str, chunk_ids: Sequence[int], parts: int) -> Iterator[ChunkPart]:
        """Yield the first part of every chunk that is still there, then the second of every chunk, and so on.

        For a cache on another host and a model that begins with its first layer while the others are on their way:
        with as many parts as layers, one part is one layer. Always sent, never shared memory: there every layer is
        at hand at once.

        Raises
        ------
        InputError
            If a chunk's bytes cannot be cut into so many equal parts.
        ChecksumError
            Instead of the last part of a chunk: what was yielded of it before is then not to be used either.
        TruncatedStreamError, DataLossError
            As of :meth:`fetch`.
        """
        if check_count(parts, "parts") < 1:
            raise InputError(f"parts {parts} must be at least 1")
        # A chunk that is asked for twice comes once.
        wanted = list(dict.fromkeys(convert.chunk_ids_to_proto(chunk_ids)))
        request = pb.FetchRequest(namespace=convert.key_to_proto(namespace), chunk_ids=wanted, parts=parts)

        def first() -> tuple[Iterator[ChunkPart], ChunkPart | None]:
            stream = read_parts(self._transport.fetch(request, self._fetch_timeout_s), parts)
            return stream, next(stream, None)

        stream, part = self._reopening(namespace, first)
        while part is not None:
            yield part
            part = next(stream, None)

    def put(self, request: PutRequest) -> PutReceipt:
        """Offer chunks, and send those that the cache wants, in several calls if they are large.

        A chunk larger than the cache's whole budget is counted as ``too_large`` and not sent. One that another client
        is just sending is counted as ``duplicate``; should that client fail, it is missing until it is put again.
        """
        with self._lock:
            opened = self._opened.get(convert.key_to_proto(request.namespace))
        small, too_large = list(request.chunks), 0
        check_payloads(request.chunks, opened[0].layout if opened else None)
        if opened:
            small = [c for c in request.chunks if nbytes_of(c) <= opened[1].max_bytes]
            too_large = len(request.chunks) - len(small)
        limit = min(PUT_CALL_BYTES, opened[1].max_bytes) if opened else PUT_CALL_BYTES
        wanted, receipt, offer = self._wanted(replace(request, chunks=tuple(small)))
        receipt = total(receipt, PutReceipt(too_large=too_large))
        for batch in batches(wanted, limit) if wanted or not small else ():
            receipt = total(receipt, self._put_batch(request, batch, offer))
        lease = self._leases.current() if receipt.stored else None
        if lease is not None:
            lease.warm(request.namespace)
        return receipt

    def evict(self, namespace: str, chunk_ids: Sequence[int]) -> int:
        """Remove chunks; return how many were there."""
        request = pb.EvictRequest(
            namespace=convert.key_to_proto(namespace), chunk_ids=convert.chunk_ids_to_proto(chunk_ids)
        )
        return self._reopening(namespace, lambda: self._transport.evict(request, self._timeout_s)).evicted

    def drop(self, namespace: str) -> int:
        """Forget the whole namespace, here and on the server; return how many chunks it held."""
        with self._lock:
            self._opened.pop(convert.key_to_proto(namespace), None)
        return self._transport.drop(pb.DropRequest(namespace=convert.key_to_proto(namespace)), self._timeout_s).dropped

    def stats(self) -> CacheStats:
        """Return figures of the cache and its namespaces."""
        return convert_figures.stats_from_proto(self._transport.stats(pb.StatsRequest(), self._timeout_s).stats)

    def close(self) -> None:
        """Close the connection; later calls raise :class:`~kvboost.errors.CacheUnavailableError`."""
        self._leases.close()
        self._transport.close()

    def _first(
        self, namespace: str, chunk_ids: Sequence[int], lease: Lease | None
    ) -> tuple[Iterator[ChunkKV], ChunkKV | None]:
        """Begin a fetch; return its first chunk and the stream of the others."""
        request = pb.FetchRequest(
            namespace=convert.key_to_proto(namespace),
            chunk_ids=convert.chunk_ids_to_proto(chunk_ids),
            lease=lease.name if lease else None,
        )
        stream = chunks(self._transport.fetch(request, self._fetch_timeout_s), lease)
        return stream, next(stream, None)

    def _wanted(self, request: PutRequest) -> tuple[Sequence[NewChunk], PutReceipt, str]:
        """Ask which chunks to send; return them, what becomes of the others, and the name of the offer."""
        if not request.chunks:
            return (), PutReceipt(), ""
        asked = convert.offer_to_proto(request)
        answer = self._reopening(request.namespace, lambda: self._transport.offer(asked, self._timeout_s))
        if answer is None:
            return request.chunks, PutReceipt(), ""
        if any(index >= len(request.chunks) for index in answer.wanted):
            raise DataLossError("the server wants chunks that were not offered; put them again")
        receipt = convert_figures.receipt_from_proto(answer.receipt)
        return [request.chunks[index] for index in answer.wanted], receipt, answer.offer

    def _put_batch(self, request: PutRequest, batch: Sequence[NewChunk], offer: str) -> PutReceipt:
        header = pb.PutHeader(
            namespace=convert.key_to_proto(request.namespace),
            token_ids=convert.token_ids_to_proto(request.token_ids),
            chunks=[convert.new_chunk_to_proto(c) for c in batch],
            prefix_only=request.prefix_only,
            offer=offer,
        )
        check_size(header, "the sequence and its texts", MAX_MESSAGE_BYTES, "put the chunks of a shorter one")

        def send() -> pb.PutResponse:
            return self._transport.put(parts_of(header, batch), self._put_timeout_s)

        return convert_figures.receipt_from_proto(self._reopening(request.namespace, send).receipt)

    def _reopening(self, key: str, call: Callable[[], T]) -> T:
        """Run ``call``; once more after announcing the namespace if the server does not know it (any more)."""
        try:
            return call()
        except UnknownNamespaceError:
            with self._lock:
                opened = self._opened.get(key)
            if opened is None:
                raise
            self.open(opened[0])
            return call()
