"""Errors in OpenAI's shape: one sentence each, with the status that its clients expect."""

from __future__ import annotations

import logging
import secrets
import traceback
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from kvboost.errors import (
    EmptyPromptError,
    InputError,
    KVBoostError,
    PromptTooLongError,
    RuntimeBusyError,
    RuntimeUnavailableError,
    SupportError,
)

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1
_TYPES = {400: "invalid_request_error", 404: "invalid_request_error", 429: "rate_limit_error"}


class FieldError(InputError):
    """A field of the request does not fit, or is missing; None stands for the body itself."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedError(FieldError):
    """A field of the request asks for something that is not supported."""


class UnknownModelError(InputError):
    """No runtime serves the model that was asked for."""


class BusyError(KVBoostError):
    """The gateway serves as many requests as it may."""


def status_of(error: Exception) -> int:
    """Return the HTTP status that stands for ``error``."""
    if isinstance(error, UnknownModelError):
        return 404
    if isinstance(error, InputError | SupportError):
        return 400
    if isinstance(error, BusyError | RuntimeBusyError):
        return 429
    return 503 if isinstance(error, RuntimeUnavailableError) else 500


def error_body(error: Exception) -> dict[str, Any]:
    """Return the body that tells of ``error``; of a fault of our own only an id, and the log gets the stack."""
    if isinstance(error, KVBoostError):
        param = error.param if isinstance(error, FieldError) else None
        return _body(str(error), status_of(error), param, _code(error))
    incident = secrets.token_hex(4)
    # Not the exception's text, which may quote a prompt.
    stack = "".join(traceback.format_tb(error.__traceback__))
    log.error("internal error %s: %s\n%s", incident, type(error).__name__, stack)
    return _body(f"internal error, id {incident}", 500)


def install(app: FastAPI) -> None:
    """Have every error of ``app`` answered in OpenAI's shape."""
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(KVBoostError, _on_error)
    app.add_exception_handler(Exception, _on_error)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    status = status_of(error)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else None
    return JSONResponse(error_body(error), status, headers)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return JSONResponse(_body(what, error.status_code), error.status_code, error.headers)


def _body(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _code(error: KVBoostError) -> str | None:
    if isinstance(error, UnknownModelError):
        return "model_not_found"
    if isinstance(error, PromptTooLongError):
        return "context_length_exceeded"
    if isinstance(error, EmptyPromptError):
        return "empty_prompt"
    return "unsupported_parameter" if isinstance(error, UnsupportedError) else None
