"""A runtime service that does what its prompt says: fails, breaks off, or goes on until it is cancelled.

Real gRPC, no model: how a gateway copes with a runtime that misbehaves could not be provoked with a real one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from kvboost.errors import QuotaError, RuntimeBusyError
from kvboost.services.grpc_server import start_server
from kvboost.v1 import runtime_pb2 as pb
from kvboost.wire.address import parse_address
from kvboost.wire.convert import namespace_to_proto
from tests.contracts.chunks import namespace

SERVICE = "kvboost.v1.RuntimeService"
_STEP_S = 0.01


@dataclass
class ScriptedRuntime:
    """Answers ``ok N`` with ``N`` tokens. ``silent`` sends nothing, ``endless`` does not end: both until cancelled.
    ``fail N`` fails after ``N`` tokens, ``break N`` ends after them without a finish, ``full`` refuses."""

    model: str = "scripted"
    address: str = ""
    cache_fault: str = ""
    cancelled: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    prompts: list[str] = field(default_factory=list)

    def describe(self, request: Any, context: Any) -> pb.DescribeRuntimeResponse:
        served = sum(prompt.startswith("ok") for prompt in self.prompts)
        tokens = {"prefix": 4 * served, "exact": 3 * served, "computed": 3 * served}
        audit = pb.TierAudit(
            tier=3, audits=40, violations=2, mean_kl=0.0123, threshold=0.91, recompute_ratio=0.15, rate_high=0.2
        )
        return pb.DescribeRuntimeResponse(
            version="0",
            model=self.model,
            namespace=namespace_to_proto(namespace("ann")),
            max_context_tokens=100,
            counters={"requests": served, "prompt_tokens": 10 * served, "cache_calls_spared": 0}
            | {f"tokens_{tier}": count for tier, count in tokens.items()},
            audits=[audit],
            batch=pb.BatchState(max_batch=8, max_queue=8),
            cache_fault=self.cache_fault,
        )

    def generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        self.prompts.append(request.prompt)
        word, _, number = request.prompt.partition(" ")
        if word == "full":
            raise RuntimeBusyError("8 calls are waiting; try again later")
        if word in ("silent", "endless"):
            context.add_callback(self.cancelled.release)
            while context.is_active():
                time.sleep(_STEP_S)
                if word == "endless":
                    yield _token()
            return
        for _ in range(int(number)):
            yield _token()
        if word == "fail":
            raise QuotaError("the runtime ran out of room")
        if word == "ok":
            yield _finish(int(number))


def _token() -> pb.GenerateResponse:
    return pb.GenerateResponse(token=pb.TokenPiece(id=1, text="a "))


def _finish(tokens: int) -> pb.GenerateResponse:
    report = pb.ReuseReport(
        prompt_tokens=10,
        tokens_by_tier={"prefix": 4, "exact": 3, "computed": 3},
        recomputed_tokens=1,
        ttft_s=0.3,
        stages_s={"match": 0.25},
        declined=["too short", "not worth it"],
        fallback="CacheUnavailableError: gone",
        saved_s=1.5,
        spans=[
            pb.TierSpan(start=0, end=4, tier=1),
            pb.TierSpan(start=4, end=5, tier=2),
            pb.TierSpan(start=5, end=6, tier=5, repaired=True),
            pb.TierSpan(start=6, end=8, tier=2),
            pb.TierSpan(start=8, end=10, tier=5),
        ],
    )
    return pb.GenerateResponse(finish=pb.Finish(reason="stop", new_tokens=tokens, report=report, text="end"))


@contextmanager
def scripted_runtime(model: str = "scripted", address: str = "127.0.0.1:0") -> Iterator[ScriptedRuntime]:
    """Run one in this process until the block ends."""
    runtime = ScriptedRuntime(model)

    def register(server: grpc.Server) -> None:
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(
                runtime.describe, pb.DescribeRuntimeRequest.FromString, pb.DescribeRuntimeResponse.SerializeToString
            ),
            "Generate": grpc.unary_stream_rpc_method_handler(
                runtime.generate, pb.GenerateRequest.FromString, pb.GenerateResponse.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    server = start_server(register, [SERVICE], [parse_address(address)], workers=32)
    runtime.address = str(server.addresses[0])
    try:
        yield runtime
    finally:
        server.stop(0)
