"""What the gateway refuses by itself, in OpenAI's shape: no runtime is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.scripted_runtime import scripted_runtime
from tests.servers import gateway_server


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with scripted_runtime() as runtime, gateway_server([runtime.address]) as gateway:
        with OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60) as client:
            yield client
        assert runtime.prompts == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"extra_body": {"best_of": 2}}, "best_of is not supported here; ask for n answers"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be at most 20"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not supported"),
        ({"extra_body": {"min_p": 0.1}}, "min_p is not supported here; leave it out"),
        ({"extra_body": {"kvboost": {"skip": True}}}, "kvboost.skip is unknown; leave it out"),
        ({"temperature": -0.5}, "temperature -0.5 must be"),
        ({"top_p": 0.0}, "top_p 0.0 must"),
        ({"temperature": "warm"}, "temperature must be a number, not a text"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens and max_completion_tokens differ"),
        ({"stop": ["a", ""]}, "stop must not hold an empty text"),
        ({"stream_options": {"include_usage": True}}, "stream_options is for streams"),
        ({"messages": []}, "messages is empty; send at least one message"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "messages[0].role must be one of system, developer, user, assistant",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}, "content"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls is not"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(client: OpenAI, options: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            **{"model": "scripted", "messages": [{"role": "user", "content": "The water."}], **options}
        )
    error = caught.value.body
    assert isinstance(error, dict)
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert "\n" not in error["message"]


def test_errors_without_a_model_have_openais_shape_too(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "The water."}])
    assert caught.value.code == "model_not_found"
    url = str(client.base_url).removesuffix("/v1/")
    for method, path, body, status in (
        ("GET", "/v1/nothing", b"", 404),
        ("GET", "/v1/chat/completions", b"", 405),
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"[]", 400),
        ("POST", "/v1/completions", b"{}", 400),
    ):
        answer = client._client.request(method, url + path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, path
        error = json.loads(answer.content)["error"]
        assert {"message", "type", "param", "code"} <= error.keys()
        assert error["message"]
