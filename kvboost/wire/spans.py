"""Spans of gRPC calls, on both sides; the trace travels in the metadata (W3C trace context)."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple

import grpc
from opentelemetry import context as otel
from opentelemetry import propagate, trace

_TRACER = trace.get_tracer("kvboost")
_OWN = "/kvboost."
# Asked every few seconds, or held as long as a client lives: on their own they are no request.
_POLLED = ("Describe", "Stats", "Lease")
_END = object()


class _Details(NamedTuple):
    """The fields of a call, as gRPC's own are, which cannot be made."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]] | None
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class ClientTracing(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Makes every call inside a span one of its own that ends with it; calls outside of any stay without."""

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Trace a call."""
        return _traced(continuation, details, request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Trace a call."""
        return _traced(continuation, details, request)

    def intercept_stream_unary(self, continuation: Callable[..., Any], details: Any, requests: Any) -> Any:
        """Trace a call."""
        return _traced(continuation, details, requests)

    def intercept_stream_stream(self, continuation: Callable[..., Any], details: Any, requests: Any) -> Any:
        """Trace a call."""
        return _traced(continuation, details, requests)


class ServerTracing(grpc.ServerInterceptor):
    """Makes every call of our services a span in its caller's trace, or the first one of a new trace."""

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the next handler, traced."""
        handler = continuation(details)
        if handler is None or not details.method.startswith(_OWN):
            return handler
        metadata = {key: value for key, value in details.invocation_metadata if isinstance(value, str)}
        parent = propagate.extract(metadata)
        if details.method.endswith(_POLLED) and not trace.get_current_span(parent).get_span_context().is_valid:
            return handler
        return _traced_handler(handler, details.method, parent)


def _traced(continuation: Callable[..., Any], details: Any, request: Any) -> Any:
    if not trace.get_current_span().get_span_context().is_valid:
        return continuation(details, request)
    span = _TRACER.start_span(details.method.strip("/"), kind=trace.SpanKind.CLIENT, attributes={"rpc.system": "grpc"})
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    metadata = [*(details.metadata or ()), *carrier.items()]
    try:
        call = continuation(
            _Details(
                details.method,
                details.timeout,
                metadata,
                details.credentials,
                getattr(details, "wait_for_ready", None),
                getattr(details, "compression", None),
            ),
            request,
        )
    except BaseException:
        span.end()
        raise
    call.add_done_callback(lambda done: _end(span, done.code()))
    return call


def _end(span: trace.Span, code: grpc.StatusCode | None) -> None:
    if code is not None:
        span.set_attribute("rpc.grpc.status_code", code.value[0])
        if code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
            span.set_status(trace.StatusCode.ERROR, code.name)
    span.end()


def _traced_handler(handler: Any, method: str, parent: otel.Context) -> Any:
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    def begin() -> tuple[trace.Span, contextvars.Context]:
        span = _TRACER.start_span(
            method.strip("/"), parent, kind=trace.SpanKind.SERVER, attributes={"rpc.system": "grpc"}
        )
        # Every step runs in this context: a span made current across a yield might be left in another thread.
        inside = contextvars.copy_context()
        inside.run(otel.attach, trace.set_span_in_context(span, parent))
        return span, inside

    @wraps(behaviour)
    def unary(request: Any, context: grpc.ServicerContext) -> Any:
        span, inside = begin()
        try:
            return inside.run(behaviour, request, context)
        finally:
            _end(span, context.code())

    @wraps(behaviour)  # with the notes that a handler carries: where it runs
    def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        span, inside = begin()
        try:
            responses = inside.run(lambda: iter(behaviour(request, context)))
            while (response := inside.run(next, responses, _END)) is not _END:
                yield response
        finally:
            _end(span, context.code())

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(
        stream if handler.response_streaming else unary, handler.request_deserializer, handler.response_serializer
    )
