"""Bodies that no client should send: answered or refused in one sentence of ours, never by a fault of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from kvboost.client.bounds import MAX_REQUEST_BYTES
from kvboost.services.gateway.app import make_app
from kvboost.services.gateway.reading import MAX_BODY_BYTES
from kvboost.services.gateway.run import GatewayOptions, make_gateway
from tests.runtime_service import runtime_service
from tests.scripted_runtime import ScriptedRuntime, scripted_runtime

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HALF = "\ud800"
# Words of pydantic's, of Python's and of protobuf's: a caller gets none of them.
FOREIGN = ("valid ", "should", "Input", "validat", "Error", "codec", "<class", "unsigned", "pydantic", "NoneType")


@pytest.fixture(scope="module")
def runtime() -> Iterator[ScriptedRuntime]:
    with scripted_runtime() as runtime:
        yield runtime


@pytest.fixture(scope="module")
def client(runtime: ScriptedRuntime) -> Iterator[TestClient]:
    with gateway_client(runtime.address) as client:
        yield client


def gateway_client(address: str) -> TestClient:
    return TestClient(make_app(make_gateway(GatewayOptions([address]))), raise_server_exceptions=False)


def send(client: TestClient, path: str, body: object) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=raw, headers={"Content-Type": "application/json"})


def chat(**fields: object) -> dict[str, object]:
    return {"model": "scripted", "messages": [{"role": "user", "content": "ok 1"}], **fields}


def completion(**fields: object) -> dict[str, object]:
    return {"model": "scripted", "prompt": "ok 1", **fields}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (chat(model=HALF), "model", "holds half of a surrogate pair at character 0; send whole characters"),
        (chat(messages=[{"role": "user", "content": "a" + HALF}]), "messages[0].content", "at character 1"),
        (chat(messages=[{"role": "user", "content": [{"type": "text", "text": HALF}]}]), None, "content[0].text holds"),
        (chat(messages=[{"role": HALF, "content": "a"}]), "messages[0].role", "surrogate"),
        (chat(stop=["a", HALF]), "stop[1]", "surrogate"),
        (chat(user=HALF), "user", "surrogate"),
        (chat(metadata={"a": {"b": HALF}}), "metadata.a.b", "surrogate"),
        (chat(**{HALF: 1}), None, "the body holds half"),
        (completion(prompt=HALF), "prompt", "surrogate"),
        (completion(prompt=["a", HALF]), "prompt[1]", "surrogate"),
        (chat(seed=2**64), "seed", "must lie in [0, 2**64)"),
        (chat(seed=-1), "seed", "must lie in [0, 2**64)"),
        (chat(seed=10**400), "seed", "of 1329 bits must lie in"),
        (chat(seed=True), "seed", "must be a whole number, not true or false"),
        (chat(seed=1.5), "seed", "must be a whole number"),
        (chat(top_k=2**32), "top_k", "must lie in [0, 2**32)"),
        (chat(max_tokens=2**32), "max_tokens", "must be at most 4294967295"),
        (chat(max_completion_tokens=10**30), "max_completion_tokens", "must be at most"),
        (chat(max_tokens=True), "max_tokens", "must be a whole number, not true or false"),
        (chat(logprobs=True, top_logprobs=10**30), "top_logprobs", "must be at most 20"),
        (chat(temperature=10**400), "temperature", "must be a number that fits"),
        (chat(temperature=False), "temperature", "must be a number, not true or false"),
        (chat(temperature=float("nan")), None, "holds NaN, which JSON does not know"),
        (chat(temperature=float("inf")), None, "holds Infinity"),
        (b'{"model": "scripted", "prompt": "a", "temperature": 1e999}', "temperature", "must be a number of at least"),
        (b'{"seed": ' + b"9" * 5000 + b"}", None, "holds a number that is too long"),
        (b"[" * 200_000, None, "nested too deeply"),
        (b'{"model": "\xff"}', None, "is not valid JSON"),
        (chat(stop=5), "stop", "must be a text or a list of texts"),
        (chat(stop=[5]), "stop[0]", "must be a text, not a number"),
        (chat(stop=["a"] * 65), "stop", "holds 65 texts; give at most 64"),
        (chat(stop="a" * 1025), "stop[0]", "has 1025 characters; give at most 1024"),
        (chat(n=1.5), "n", "must be a whole number"),
        (chat(stream="yes"), "stream", "must be true or false, not a text"),
        (chat(kvboost=[]), "kvboost", "must be an object, not a list"),
        (chat(messages="a"), "messages", "must be a list, not a text"),
        (chat(messages=["a"]), "messages[0]", "must be an object, not a text"),
        (chat(messages=[{"role": "user", "content": None}]), "messages[0].content", "a text or a list of text parts"),
        (chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), None, "type must be one of text"),
        (completion(prompt={}), "prompt", "must be a text, a list of texts, a list of token ids, or"),
        (completion(prompt=[1, "a"]), "prompt", "must be a text, a list of texts"),
        (completion(prompt=[1, -1]), None, "token_ids must lie in [0, 2**32)"),
        (completion(prompt=[2**40]), None, "token_ids must lie in [0, 2**32)"),
        (completion(prompt=[[1], [True]]), "prompt", "must be a text"),
        (completion(logprobs=True), "logprobs", "must be a whole number, not true or false"),
    ],
)
def test_what_no_field_can_hold_is_refused_by_its_path(
    client: TestClient, runtime: ScriptedRuntime, body: Any, param: str | None, words: str
) -> None:
    asked = len(runtime.prompts)
    answer = send(client, COMPLETIONS if isinstance(body, bytes) or "prompt" in body else CHAT, body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert words in error["message"]
    assert param is None or error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert not any(word in error["message"].replace("is not valid JSON", "") for word in FOREIGN), error["message"]
    assert "\n" not in error["message"]
    assert len(runtime.prompts) == asked


@pytest.mark.parametrize(
    "body", [chat(messages=[]), completion(prompt=""), completion(prompt=[]), completion(prompt=["a", ""])]
)
def test_an_empty_prompt_has_a_code_of_its_own(client: TestClient, body: dict[str, object]) -> None:
    answer = send(client, COMPLETIONS if "prompt" in body else CHAT, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "empty_prompt"
    assert "is empty" in answer.json()["error"]["message"]


def test_what_a_request_cannot_hold_is_too_long_and_no_runtime_is_asked(
    client: TestClient, runtime: ScriptedRuntime
) -> None:
    asked = len(runtime.prompts)
    long = "é" * (MAX_REQUEST_BYTES // 2)
    for path, body in (
        (COMPLETIONS, completion(prompt=long)),
        (COMPLETIONS, completion(prompt=[300] * MAX_REQUEST_BYTES)),
        (CHAT, chat(messages=[{"role": "user", "content": long}])),
        (CHAT, b'{"model": "' + b"a" * MAX_BODY_BYTES + b'"}'),
    ):
        answer = send(client, path, body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert len(runtime.prompts) == asked


def test_what_just_fits_is_sent_on(client: TestClient) -> None:
    answer = send(client, COMPLETIONS, completion(prompt="ok 1" + " " * (MAX_REQUEST_BYTES - 1000)))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", ["%ED%A0%80", "%FF", "a%00b", "x" * 5000])
def test_names_of_models_in_the_path_may_be_anything(client: TestClient, name: str) -> None:
    answer = client.get(f"/v1/models/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("header", ["traceparent", "tracestate", "baggage", "user-agent", "authorization"])
def test_headers_may_hold_any_bytes(client: TestClient, header: str) -> None:
    body = json.dumps(completion()).encode()
    headers = {"Content-Type": "application/json", header: b"\xff\xed\xa0\x80 00-zz=\xc3"}
    assert client.post(COMPLETIONS, content=body, headers=headers).status_code == 200  # type: ignore[arg-type]


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 2**31, 2**32, 2**63, 2**64, 10**400, 0.5, 1e308, float("nan"), float("inf")]),
    st.text(st.characters(codec=None), max_size=6),
    st.sampled_from([HALF, "", "a", "\0", "ok 1", "tiny"]),
)
JSON = st.recursive(
    ODD,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "include_usage", "x", HALF]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        *("model", "messages", "prompt", "n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k"),
        *("repetition_penalty", "seed", "stop", "stream", "stream_options", "kvboost", "logprobs", "top_logprobs"),
        *("user", "metadata", "tools", "logit_bias", "response_format", "suffix", "unknown"),
    ]
)


@pytest.fixture(scope="module")
def real() -> Iterator[TestClient]:
    with runtime_service() as running, gateway_client(running.client.address) as client:
        yield client


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([CHAT, COMPLETIONS]), st.dictionaries(FIELDS, JSON, max_size=3))
def test_no_body_makes_the_server_fail(real: TestClient, path: str, changed: dict[str, object]) -> None:
    body = {"model": "tiny", "max_tokens": 1, **changed}
    body.setdefault(
        "messages" if path == CHAT else "prompt", [{"role": "user", "content": "Water."}] if path == CHAT else "Water."
    )
    answer = send(real, path, body)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        message = answer.json()["error"]["message"]
        assert message
        assert not any(word in message.replace("is not valid JSON", "") for word in FOREIGN), message
    elif body.get("stream"):
        assert "server_error" not in answer.text


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([CHAT, COMPLETIONS]), st.one_of(st.binary(max_size=40), JSON))
def test_no_bytes_make_the_server_fail(real: TestClient, path: str, body: object) -> None:
    assert send(real, path, body).status_code in (400, 404)
