"""Calls whose request or answer is larger than one message may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from kvboost.errors import InputError
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire import pieces

Method = Callable[[Any, grpc.ServicerContext], Any]


def fitting(method: Method) -> Method:
    """Return ``method``, which raises :class:`~kvboost.errors.MessageSizeError` where its answer is too large."""

    @wraps(method)
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        response = method(request, context)
        pieces.check_size(response, "the answer", pieces.MAX_MESSAGE_BYTES, "make the call through Large")
        return response

    return call


class LargeCalls:
    """The handler of ``Large``.

    Parameters
    ----------
    methods
        By name, each with the message that it takes.
    """

    def __init__(self, methods: Mapping[str, tuple[Method, Any]]) -> None:
        self._methods = methods

    def __call__(self, requests: Iterator[pb.Piece], context: grpc.ServicerContext) -> Iterator[pb.Piece]:
        """Put the request together, answer it, and send the answer in pieces."""
        name, data = pieces.join(requests)
        if name not in self._methods:
            raise InputError(f"method {name!r} is not one of {', '.join(self._methods)}")
        method, kind = self._methods[name]
        try:
            request = kind.FromString(data)
        except DecodeError as error:
            raise InputError(f"the pieces are not a valid request of {name}") from error
        response = method(request, context)
        pieces.check_size(response, "the answer", pieces.MAX_LARGE_BYTES, "ask for less at a time")
        yield from pieces.split(response)
