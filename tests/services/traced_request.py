"""Serves two chat requests through cache, runtime and gateway in one process, and prints their spans as JSON.

A process of its own: OpenTelemetry's provider is one for the whole process, and cannot be taken back.
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack

import uvicorn
from openai import OpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvboost import __version__
from kvboost.client import CacheClient
from kvboost.runtime.batching import Batch
from kvboost.services.cache_server import SERVICE_NAME as CACHE
from kvboost.services.cache_server import CacheServicer
from kvboost.services.gateway.app import make_app
from kvboost.services.gateway.run import GatewayOptions, make_gateway
from kvboost.services.grpc_server import start_server
from kvboost.services.runtime_server import SERVICE_NAME as RUNTIME
from kvboost.services.runtime_server import RuntimeServicer, ServedModel
from kvboost.types import CacheInfo
from kvboost.wire.address import parse_address
from tests.boosting import boosted, document, engine_of, new_cache, tokenizer

ANYWHERE = parse_address("127.0.0.1:0")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def main() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with ExitStack() as stack:
        cache = CacheServicer(new_cache(), CacheInfo(__version__, 64 << 20, "", 2))
        cache_server = start_server(cache.register, [CACHE], [ANYWHERE])
        stack.callback(cache_server.stop, 0)
        model = stack.enter_context(boosted(cache=CacheClient(str(cache_server.addresses[0]))))
        batch = Batch(engine_of(model))
        stack.callback(batch.close)
        runtime = RuntimeServicer(ServedModel(engine_of(model), tokenizer(), "tiny"), batch)
        runtime_server = start_server(runtime.register, [RUNTIME], [ANYWHERE])
        stack.callback(runtime_server.stop, 0)
        gateway = make_gateway(GatewayOptions([str(runtime_server.addresses[0])]))
        stack.callback(gateway.close)
        ask(uvicorn.Server(uvicorn.Config(make_app(gateway), port=0, log_config=None)))
    for span in exporter.get_finished_spans():
        context, parent = span.get_span_context(), span.parent
        assert context is not None
        told = {
            "trace": f"{context.trace_id:032x}",
            "id": f"{context.span_id:016x}",
            "parent": f"{parent.span_id:016x}" if parent else None,
            "name": span.name,
            "kind": span.kind.name,
            "attributes": dict(span.attributes or {}),
        }
        print(json.dumps(told))


def ask(server: uvicorn.Server) -> None:
    """Serve, ask twice, and stop."""
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60)
    for number, stream in enumerate((False, True)):
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": document(1)}],
            max_tokens=4,
            stream=stream,
            extra_body={"kvboost": {"wait_for_store": True}},
            extra_headers={"traceparent": f"00-{TRACE[:-1]}{number}-00f067aa0ba902b7-01"},
        )
        if stream:
            list(answer)  # type: ignore[call-overload]
    client.close()
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
