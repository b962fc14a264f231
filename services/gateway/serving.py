"""One request from body to answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from kvboost.client.runtime_types import Finish, TokenPiece
from kvboost.errors import RuntimeUnavailableError

from .answers import Answered, AnswerForm
from .asking import Ask, Choice
from .bridge import CallerGoneError, in_thread, while_connected
from .errors import error_body
from .logprobs import LogprobsForm
from .metrics import RequestMetrics, Who
from .recent import Recent, Served
from .runtimes import Runtimes, Seat
from .tracing import AnswerTrace, answer_trace
from .watch import Watch

Events = AsyncGenerator[TokenPiece | Finish, None]
ChoiceEvent = tuple[Choice, TokenPiece | Finish]
ChoiceEvents = AsyncGenerator[ChoiceEvent, None]


@dataclass(frozen=True)
class Gateway:
    """The parts of a gateway.

    Attributes
    ----------
    show_prompts
        Whether the texts of the latest prompts are kept in memory, for their reuse maps.
    """

    runtimes: Runtimes
    watch: Watch
    metrics: RequestMetrics
    recent: Recent
    show_prompts: bool = False

    def close(self) -> None:
        """Close all connections."""
        self.watch.close()
        self.runtimes.close()


async def respond(gateway: Gateway, ask: Ask, request: Request) -> Response:
    """Answer ``ask``. The first event is awaited before anything is sent: until then, errors have a status.

    Raises
    ------
    KVBoostError
        If there is no answer.
    CallerGoneError
        If the client went away.
    """
    form = AnswerForm.of(ask)
    events = _all_events(gateway, ask, form, request)
    if not ask.stream:
        return JSONResponse(await _whole(form, events))
    first = await anext(events)
    return EventStream(_chunks(form, len(ask.choices()), first, events))


class EventStream(Response):
    """Server-sent events, one for each text of ``data``; they are closed when the client goes away."""

    media_type = "text/event-stream"

    def __init__(self, data: AsyncGenerator[str, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._data = data

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it."""
        async with aclosing(self._data) as data:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for text in data:
                body = f"data: {text}\n\n".encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _whole(form: AnswerForm, events: ChoiceEvents) -> dict[str, Any]:
    answers: list[Answered] = []
    pieces: list[str] = []
    logprobs = LogprobsForm(form.chat)
    async with aclosing(events):
        async for choice, event in events:
            pieces.append(event.text)
            if isinstance(event, Finish):
                answers.append(Answered(choice, event, "".join(pieces), logprobs.take()))
                pieces, logprobs = [], LogprobsForm(form.chat)
            else:
                logprobs.add(event)
    return form.whole(answers)


async def _chunks(form: AnswerForm, count: int, first: ChoiceEvent, events: ChoiceEvents) -> AsyncGenerator[str, None]:
    """Yield the data of a stream of ``count`` answers; an error after the first event becomes an event, and it ends."""
    try:
        async with aclosing(events):
            async for chunk in _spoken(form, count, _after(first, events)):
                yield json.dumps(chunk)
    except CallerGoneError:
        return
    except Exception as error:  # noqa: BLE001
        yield json.dumps(error_body(error))
        return
    yield "[DONE]"


async def _after(first: ChoiceEvent, events: ChoiceEvents) -> AsyncIterator[ChoiceEvent]:
    yield first
    async for event in events:
        yield event


async def _spoken(form: AnswerForm, count: int, events: AsyncIterator[ChoiceEvent]) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks of ``count`` answers."""
    answers: list[Answered] = []
    logprobs: LogprobsForm | None = None
    async for choice, event in events:
        if logprobs is None:
            logprobs = LogprobsForm(form.chat)
            if (opening := form.opening(choice.index)) is not None:
                yield opening
        if isinstance(event, TokenPiece):
            logprobs.add(event)
        ready = logprobs.take() if event.text or isinstance(event, Finish) else None
        if event.text or ready is not None:
            yield form.piece(choice.index, event.text, ready)
        if isinstance(event, Finish):
            answers.append(Answered(choice, event))
            logprobs = None
            end = form.end(choice.index, event)
            for chunk in [end] if len(answers) < count else form.closing(end, answers):
                yield chunk


async def _all_events(gateway: Gateway, ask: Ask, form: AnswerForm, request: Request) -> ChoiceEvents:
    """Yield what runtimes answer, one choice after the other: a later one finds the prompt's K/V in the cache."""
    for choice in ask.choices():
        async with aclosing(_events(gateway, ask.model, choice, form, request)) as events:
            async for event in events:
                yield choice, event


async def _events(gateway: Gateway, model: str, choice: Choice, form: AnswerForm, request: Request) -> Events:
    """Yield what a runtime answers; one that fails before its first event is left for the next."""
    if not gateway.runtimes.models():
        await asyncio.to_thread(gateway.runtimes.refresh)
    tried: dict[str, RuntimeUnavailableError] = {}
    while True:
        try:
            seat = gateway.runtimes.seat(model, tried)
        except RuntimeUnavailableError:
            if not tried:
                raise
            raise next(reversed(tried.values())) from None
        begun = False
        try:
            async with aclosing(_counted(gateway, choice, form, seat, request)) as events:
                async for event in events:
                    begun = True
                    yield event
            return
        except RuntimeUnavailableError as error:
            if begun:
                raise
            tried[seat.address] = error


async def _counted(gateway: Gateway, choice: Choice, form: AnswerForm, seat: Seat, request: Request) -> Events:
    """Yield what the runtime of ``seat`` answers, and count it however it ends."""
    arrived_s, started_s = time.time(), time.perf_counter()
    outcome, finish, tokens = "cancelled", None, 0
    trace = answer_trace(request.headers)
    try:
        async with aclosing(while_connected(_asked(gateway, choice, seat, trace), request.receive)) as events:
            async for event in events:
                if isinstance(event, Finish):
                    outcome, finish = "ok", event
                tokens += 1
                yield event
        if finish is None:
            raise RuntimeUnavailableError(f"the answer of {seat.address} broke off after {tokens} tokens; ask again")
    except (CallerGoneError, asyncio.CancelledError, GeneratorExit):
        raise
    except Exception:
        outcome = "error"
        raise
    finally:
        seat.leave()
        trace.end(outcome, finish)
        duration_s = time.perf_counter() - started_s
        who = Who(seat.model, seat.tenant)
        gateway.metrics.count_answer(who, outcome, duration_s)
        if finish is not None:
            gateway.metrics.count_finish(who, finish)
            gateway.recent.add(
                Served(
                    id=f"{form.id}-{choice.index}" if choice.index else form.id,
                    at_s=arrived_s,
                    model=who.model,
                    runtime=seat.address,
                    new_tokens=finish.new_tokens,
                    duration_s=duration_s,
                    report=finish.report,
                    token_texts=finish.token_texts,
                )
            )


def _asked(gateway: Gateway, choice: Choice, seat: Seat, trace: AnswerTrace) -> Events:
    options = choice.options.copy()
    if gateway.show_prompts:
        options["with_token_texts"] = True

    def events() -> Iterator[TokenPiece | Finish]:
        return trace.inside(lambda: seat.client.generate(choice.prompt, **options))

    return in_thread(events, seat.give_up, gateway.runtimes.executor)
