"""The gateway's part of a request's trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from kvboost.client.runtime_types import Finish
from kvboost.wire.tracing import tracing_is_set_up

E = TypeVar("E")


class AnswerTrace(Protocol):
    """The span of one answer."""

    def inside(self, events: Callable[[], Iterator[E]]) -> Iterator[E]:
        """Yield ``events`` with the span as the current one; to be read in one thread."""
        ...

    def end(self, outcome: str, finish: Finish | None) -> None:
        """End the span with what became of the answer."""
        ...


class NoTrace:
    """Without tracing."""

    def inside(self, events: Callable[[], Iterator[E]]) -> Iterator[E]:
        """Return ``events``."""
        return events()

    def end(self, outcome: str, finish: Finish | None) -> None:
        """Do nothing."""


class OpenTelemetryTrace:
    """A span in the trace that is under way (newer FastAPI begins one), that the headers name, or in one of its own."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        from opentelemetry import context, propagate, trace

        under_way = trace.get_current_span().get_span_context().is_valid
        self._parent = context.get_current() if under_way else propagate.extract(headers)
        self._span: Any = trace.get_tracer("kvboost").start_span("kvboost answer", self._parent)

    def inside(self, events: Callable[[], Iterator[E]]) -> Iterator[E]:
        """Yield ``events`` with the span as the current one; to be read in one thread."""
        from opentelemetry import context, trace

        token = context.attach(trace.set_span_in_context(self._span, self._parent))
        try:
            yield from events()
        finally:
            context.detach(token)

    def end(self, outcome: str, finish: Finish | None) -> None:
        """End the span; of a whole answer it says what was reused."""
        from opentelemetry import trace

        self._span.set_attribute("kvboost.outcome", outcome)
        if outcome == "error":
            self._span.set_status(trace.StatusCode.ERROR)
        if finish is not None:
            report = finish.report
            self._span.set_attribute("kvboost.prompt_tokens", report.prompt_tokens)
            self._span.set_attribute("kvboost.reused_tokens", report.reused_tokens)
            self._span.set_attribute("kvboost.new_tokens", finish.new_tokens)
            self._span.set_attribute("kvboost.ttft_s", report.ttft_s)
            self._span.set_attribute("kvboost.fallback", report.fallback or "")
        self._span.end()


def answer_trace(headers: Mapping[str, str]) -> AnswerTrace:
    """Return the span of an answer, begun now."""
    return OpenTelemetryTrace(headers) if tracing_is_set_up() else NoTrace()
