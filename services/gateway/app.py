"""The gateway's paths."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import resources
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvboost import __version__

from ..reuse_map import to_html
from .asking import ask_of
from .bodies import ChatBody, CompletionBody
from .bridge import CallerGoneError
from .errors import UnknownModelError, install
from .metrics import RequestMetrics
from .overview import overview_of
from .reading import described, read_body
from .serving import Gateway, respond
from .watch import INTERVAL_S

log = logging.getLogger(__name__)
router = APIRouter()
_CLIENT_CLOSED_REQUEST = 499
_PAGE = {"": ("index.html", "text/html"), "page.js": ("page.js", "text/javascript")}


def make_app(gateway: Gateway, refresh_s: float = INTERVAL_S) -> FastAPI:
    """Return the application over ``gateway``, which stays the caller's to close.

    Every ``refresh_s`` seconds it asks the services for their figures.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        recording = asyncio.create_task(_record(gateway, refresh_s))
        yield
        recording.cancel()
        with suppress(asyncio.CancelledError):
            await recording

    app = FastAPI(title="KVBoost", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.gateway = gateway
    app.include_router(router)
    app.add_exception_handler(CallerGoneError, _on_gone)
    app.add_middleware(_Counting, metrics=gateway.metrics)
    install(app)
    return app


@router.post("/v1/chat/completions", openapi_extra=described(ChatBody))
async def chat_completions(request: Request) -> Response:
    """Answer a chat."""
    return await respond(_gateway(request), ask_of(await read_body(ChatBody, request)), request)


@router.post("/v1/completions", openapi_extra=described(CompletionBody))
async def completions(request: Request) -> Response:
    """Complete a text."""
    return await respond(_gateway(request), ask_of(await read_body(CompletionBody, request)), request)


@router.get("/v1/models")
def models(request: Request) -> dict[str, Any]:
    """List the models that are served."""
    return {"object": "list", "data": [_model(name) for name in _models(request)]}


@router.get("/v1/models/{name:path}")
def model(name: str, request: Request) -> dict[str, Any]:
    """Describe one model."""
    names = _models(request)
    if name not in names:
        raise UnknownModelError(f"model {name!r} is not served here; choose one of {', '.join(names) or 'none'}")
    return _model(name)


@router.get("/health")
def health(request: Request) -> Response:
    """Tell who answers; status 503 while no runtime does."""
    gateway = _gateway(request)
    sample = gateway.watch.latest(1.0)
    runtimes = {address: info is not None for address, info in sample.runtimes.items()}
    body: dict[str, Any] = {"status": "ok" if any(runtimes.values()) else "unavailable", "runtimes": runtimes}
    if gateway.watch.cache_address:
        body["cache"] = {gateway.watch.cache_address: sample.cache is not None}
    left_alone = {address: info.cache_fault for address, info in sample.runtimes.items() if info and info.cache_fault}
    if left_alone:
        body["cache_left_alone"] = left_alone  # answers come, without reuse
    return JSONResponse(body, 200 if any(runtimes.values()) else 503)


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Give the figures to Prometheus."""
    return Response(generate_latest(_gateway(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/kvboost/overview")
def overview(request: Request) -> dict[str, Any]:
    """Give the page its figures."""
    return overview_of(_gateway(request))


@router.get("/kvboost/requests/{id}/map")
def reuse_map(id: str, request: Request) -> Response:
    """Show the reuse map of one of the latest requests, if prompts are shown."""
    served = _gateway(request).recent.find(id)
    if served is None or not served.token_texts:
        return HTMLResponse("no map: the request is gone, or the gateway runs without --show-prompts", 404)
    return HTMLResponse(to_html(served.page()))


@router.get("/")
@router.get("/{name}")
def page(request: Request, name: str = "") -> Response:
    """Give the page, which is two files."""
    if name not in _PAGE:
        raise HTTPException(404)
    file, media_type = _PAGE[name]
    text = resources.files(__package__).joinpath("page", file).read_text(encoding="utf-8")
    return Response(text, media_type=media_type, headers={"Cache-Control": "no-cache"})


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _models(request: Request) -> list[str]:
    runtimes = _gateway(request).runtimes
    if not runtimes.models():
        runtimes.refresh()
    return runtimes.models()


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "kvboost"}


async def _record(gateway: Gateway, refresh_s: float) -> None:
    while True:
        try:
            await asyncio.to_thread(gateway.watch.record)
        except Exception as error:  # noqa: BLE001
            log.warning("the figures of this moment are missing: %s", type(error).__name__)
        await asyncio.sleep(refresh_s)


async def _on_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)  # nobody reads it; the figures count it


class _Counting:
    """Counts HTTP requests by the route that served them: a path that nobody serves is no label of its own."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                self._metrics.count_http(getattr(route, "path", "other"), message["status"])
            await send(message)

        await self._app(scope, receive, counting)
