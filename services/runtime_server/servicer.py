"""The runtime service's methods."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc

from kvboost.v1 import runtime_pb2 as pb

from .answering import answer
from .inputs import read_ask
from .messages import info_to_proto
from .served import ServedModel
from .turns import Turns

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["RuntimeService"].full_name


class RuntimeServicer:
    """Serves one model; errors are raised as they are, for the interceptor to translate.

    Parameters
    ----------
    served
        Stays the caller's to close.
    turns
        Who is served when; all use of the model goes through them.
    """

    def __init__(self, served: ServedModel, turns: Turns) -> None:
        self._served = served
        self._turns = turns

    def register(self, server: grpc.Server) -> None:
        """Add this service to ``server``."""
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(
                self.describe, pb.DescribeRuntimeRequest.FromString, pb.DescribeRuntimeResponse.SerializeToString
            ),
            "Generate": grpc.unary_stream_rpc_method_handler(
                self.generate, pb.GenerateRequest.FromString, pb.GenerateResponse.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    def describe(self, request: pb.DescribeRuntimeRequest, context: grpc.ServicerContext) -> pb.DescribeRuntimeResponse:
        """Tell which model runs here; answered at once, also while an answer is generated."""
        return info_to_proto(self._served)

    def generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        """Answer, when it is this call's turn."""
        arrived_s = time.perf_counter()
        ask = read_ask(request)
        return self._turns.events(lambda turn: answer(self._served, ask, arrived_s, turn), context)
