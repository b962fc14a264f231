"""From the bytes of a request's body to its fields; what does not fit is told in one sentence that names the field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from kvboost.client.bounds import MAX_REQUEST_BYTES
from kvboost.errors import InputError, PromptTooLongError
from kvboost.texts import check_text

from .bridge import CallerGoneError
from .errors import FieldError

B = TypeVar("B", bound=BaseModel)

MAX_BODY_BYTES = 8 * MAX_REQUEST_BYTES
"""JSON writes a character of one byte with six at most: what is longer holds no prompt that could be sent on."""

# What a field of several forms may be.
_FORMS: Mapping[str, str] = {
    "stop": "a text or a list of texts",
    "content": "a text or a list of text parts",
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
}
_KINDS: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "model": "an object",
    "dict": "an object",
}
_NAMES = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}


async def read_body(kind: type[B], request: Request) -> B:
    """Return the fields of ``request``.

    Raises
    ------
    InputError
        If it is no JSON, or a field is missing or does not fit.
    PromptTooLongError
        If it is longer than any request that a runtime takes.
    CallerGoneError
        If the client went away before the end.
    """
    body = parse(await _bytes_of(request))
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        _refuse(error.errors(include_url=False, include_context=True), body)


def described(kind: type[BaseModel]) -> dict[str, Any]:
    """Return what the OpenAPI document says of a body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}}


def parse(raw: bytes) -> object:
    """Return what the JSON of a body holds: whole texts and numbers alone.

    Raises
    ------
    InputError
    """
    try:
        body: object = json.loads(raw, parse_constant=_no_number)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise FieldError("the body is not valid JSON; send an object in UTF-8", None) from None
    except RecursionError:
        raise FieldError("the body is nested too deeply; send the fields of OpenAI's API", None) from None
    except InputError:
        raise
    except ValueError:  # Python refuses to read numbers of thousands of digits
        raise FieldError("the body holds a number that is too long; send fewer digits", None) from None
    for path, text in _texts(body):
        try:
            check_text(text, path or "the body")
        except InputError as error:
            raise FieldError(str(error), path or None) from None
    return body


async def _bytes_of(request: Request) -> bytes:
    parts: list[bytes] = []
    room = MAX_BODY_BYTES
    try:
        async for part in request.stream():
            room -= len(part)
            if room < 0:
                raise PromptTooLongError(f"the body has more than {MAX_BODY_BYTES:,} bytes; shorten the prompt")
            parts.append(part)
    except ClientDisconnect:
        raise CallerGoneError from None
    return b"".join(parts)


def _no_number(name: str) -> NoReturn:
    raise FieldError(f"the body holds {name}, which JSON does not know; leave it out", None)


def _texts(body: object) -> Iterator[tuple[str, str]]:
    """Yield every text with its path, and every name of a field with that of its object."""
    waiting: list[tuple[str, object]] = [("", body)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, list):
            waiting.extend((f"{path}[{i}]", one) for i, one in enumerate(value) if isinstance(one, str | list | dict))
        elif isinstance(value, dict):
            for name in value:
                yield path, name
            waiting.extend((f"{path}.{name}".lstrip("."), one) for name, one in value.items())


def _refuse(errors: Sequence[ErrorDetails], body: object) -> NoReturn:
    """Tell of the first field that does not fit."""
    first = errors[0]
    fields, is_form = _place(first, body)
    if is_form:
        # Every form of the field was tried and refused. What lies deeper tells more, if it is of one form alone.
        deeper = [(_place(one, body)[0], one) for one in errors]
        deeper = [(place, one) for place, one in deeper if place[: len(fields)] == fields and len(place) > len(fields)]
        if len({one["loc"][len(fields)] for _, one in deeper}) != 1:
            path = _path(fields)
            name = next(part for part in reversed(fields) if isinstance(part, str))
            raise FieldError(f"{path} must be {_FORMS.get(name, 'of another kind')}", path)
        fields, first = deeper[0]
    path = _path(fields)
    raise FieldError(f"{path or 'the body'} {_said(first)}", path or None)


def _place(error: ErrorDetails, body: object) -> tuple[list[str | int], bool]:
    """Return the names and indices that lead to a field, and whether the field has several forms.

    A validator of several forms adds names of its own to the place, which the body does not know.
    """
    loc, absent = error["loc"], error["type"] == "missing"
    place: list[str | int] = []
    value = body
    is_form = False
    for i, part in enumerate(loc):
        if isinstance(value, dict) and isinstance(part, str) and (part in value or (absent and i == len(loc) - 1)):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            is_form = True
            continue
        is_form = False
        place.append(part)
    return place, is_form


def _path(place: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def _said(error: ErrorDetails) -> str:
    """Return what is wrong, in our words."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return "is missing; send it"
    if kind == "extra_forbidden":
        return "is unknown; leave it out"
    if kind == "literal_error":
        return f"must be one of {context['expected'].replace(' or ', ', ').replace(chr(39), '')}"
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']}"
    value = error["input"]
    wanted = _KINDS.get(kind.partition("_")[0], "of another kind")
    if isinstance(value, int | float) and not isinstance(value, bool) and wanted.endswith("number"):
        return f"must be {wanted} that fits"
    return f"must be {wanted}, not {'null' if value is None else _NAMES.get(type(value), 'this')}"
