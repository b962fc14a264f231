"""The runtime service's methods."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc

from kvboost.runtime.batching import Batch
from kvboost.v1 import runtime_pb2 as pb

from ..grpc_lanes import Lane, in_lane
from .answering import answer
from .inputs import read_ask
from .messages import info_to_proto
from .ordering import order
from .served import ServedModel
from .warming import warm

# Asked to find out whether the runtime is well: on threads that no caller of the model can take.
DESCRIBE = Lane("describe", 1, 32)
SERVICE_NAME = pb.DESCRIPTOR.services_by_name["RuntimeService"].full_name


class RuntimeServicer:
    """Serves one model; errors are raised as they are, for the interceptor to translate.

    Parameters
    ----------
    served
        Stays the caller's to close.
    batch
        Who is served when; all use of the model goes through it.
    """

    def __init__(self, served: ServedModel, batch: Batch) -> None:
        self._served = served
        self._batch = batch

    def register(self, server: grpc.Server) -> None:
        """Add this service to ``server``."""
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(
                in_lane(DESCRIBE, self.describe),
                pb.DescribeRuntimeRequest.FromString,
                pb.DescribeRuntimeResponse.SerializeToString,
            ),
            "Generate": grpc.unary_stream_rpc_method_handler(
                self.generate, pb.GenerateRequest.FromString, pb.GenerateResponse.SerializeToString
            ),
            "Warm": grpc.unary_stream_rpc_method_handler(
                self.warm, pb.WarmRequest.FromString, pb.WarmReceipt.SerializeToString
            ),
            "Order": grpc.unary_unary_rpc_method_handler(
                self.order, pb.OrderRequest.FromString, pb.OrderResponse.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    def describe(self, request: pb.DescribeRuntimeRequest, context: grpc.ServicerContext) -> pb.DescribeRuntimeResponse:
        """Tell which model runs here; answered at once, also while an answer is generated."""
        return info_to_proto(self._served, self._batch.state())

    def generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        """Answer beside other calls; the tokens come as they are chosen."""
        arrived_s = time.perf_counter()
        return answer(self._served, self._batch, read_ask(request), arrived_s, context)

    def warm(self, request: pb.WarmRequest, context: grpc.ServicerContext) -> Iterator[pb.WarmReceipt]:
        """Put documents into the cache, between the steps of answers under way."""
        return warm(self._served, self._batch, request, context)

    def order(self, request: pb.OrderRequest, context: grpc.ServicerContext) -> pb.OrderResponse:
        """Look up in which order most of a prompt's beginning is cached; the model is not used."""
        return order(self._served, request)
