"""The interceptor that decides what a failed call tells its caller.

Our own errors become statuses with their sentence (:mod:`kvboost.wire.status`). Anything else is a fault of the
server: the caller gets an id, the log gets the id and the stack. Neither gets the exception's text, which may quote
a prompt.
"""

from __future__ import annotations

import logging
import secrets
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from kvboost.errors import InputError, KVBoostError
from kvboost.wire.status import status_of, trailer_of

log = logging.getLogger(__name__)


class ErrorInterceptor(grpc.ServerInterceptor):
    """Wraps every handler; requests are parsed inside it, so that garbage is INVALID_ARGUMENT too."""

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the next handler, guarded."""
        handler = continuation(details)
        return None if handler is None else _guarded(handler, details.method)


def _guarded(handler: Any, method: str) -> Any:
    """Return a handler that parses, runs and guards what ``handler`` does."""
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    if getattr(behaviour, "experimental_non_blocking", False):
        return handler  # gRPC calls it in a way of its own: a watcher of health takes no thread

    def parse(raw: bytes) -> Any:
        try:
            return handler.request_deserializer(raw)
        except DecodeError as error:
            raise InputError(f"the request is not a valid message of {method}") from error

    def parsed(request: Any) -> Any:
        return (parse(raw) for raw in request) if handler.request_streaming else parse(request)

    @wraps(behaviour)
    def unary(request: Any, context: grpc.ServicerContext) -> Any:
        with _errors_to_statuses(context, method):
            return behaviour(parsed(request), context)

    @wraps(behaviour)  # with the notes that a handler carries: which lane it belongs to
    def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with _errors_to_statuses(context, method):
            yield from behaviour(parsed(request), context)

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(stream if handler.response_streaming else unary, None, handler.response_serializer)


@contextmanager
def _errors_to_statuses(context: grpc.ServicerContext, method: str) -> Iterator[None]:
    try:
        yield
    except KVBoostError as error:
        context.set_trailing_metadata(trailer_of(error))
        context.abort(status_of(error), str(error))
    except grpc.RpcError:
        raise  # the caller went away; gRPC knows
    except Exception as error:
        if context.code() is not None:
            raise  # the handler chose a status itself
        incident = secrets.token_hex(4)
        stack = "".join(traceback.format_tb(error.__traceback__))
        log.error("internal error %s in %s: %s\n%s", incident, method, type(error).__name__, stack)
        context.abort(grpc.StatusCode.INTERNAL, f"internal error, id {incident}")
