"""The gateway and callers that go away, runtimes that fail, and runtimes that are not there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.scripted_runtime import ScriptedRuntime, scripted_runtime
from tests.servers import gateway_server

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Gate:
    runtime: ScriptedRuntime
    url: str
    client: OpenAI

    def ask(self, prompt: str, **options: object) -> object:
        return self.client.completions.create(model="scripted", prompt=prompt, **options)  # type: ignore[call-overload]

    def figure(self, name: str, **labels: str) -> float:
        """Return a figure of /metrics; 0 where it is not (yet) there."""
        text = self.client._client.get(f"{self.url}/metrics").text
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    with scripted_runtime() as runtime, gateway_server([runtime.address], "", "--max-requests", "4") as gateway:
        client = OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60)
        yield Gate(runtime, gateway.address, client)
        client.close()


def test_a_cache_that_is_left_alone_is_told(gate: Gate) -> None:
    def health() -> dict[str, Any]:
        answer = gate.client._client.get(f"{gate.url}/health")
        assert answer.status_code == 200  # answers come all the same
        told: dict[str, Any] = answer.json()
        return told

    assert "cache_left_alone" not in health()
    gate.runtime.cache_fault = "the server did not answer before the deadline"
    end_s = time.monotonic() + PATIENCE_S
    while "cache_left_alone" not in (told := health()):
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert told["cache_left_alone"] == {gate.runtime.address: gate.runtime.cache_fault}
    assert gate.figure("kvboost_runtime_cache_answers") == 0.0
    gate.runtime.cache_fault = ""


def until_idle(gate: Gate) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while gate.figure("kvboost_requests_in_flight"):
        assert time.monotonic() < end_s, "a request is still in flight"
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["endless", "silent"])
def test_a_caller_that_goes_away_ends_the_call(gate: Gate, prompt: str, stream: bool) -> None:
    before = gate.figure("kvboost_answers_total", outcome="cancelled")
    impatient = OpenAI(base_url=f"{gate.url}/v1", api_key="none", max_retries=0, timeout=0.3)
    if prompt == "endless" and stream:
        answer = impatient.completions.create(model="scripted", prompt=prompt, stream=True)
        assert [next(answer).choices[0].text for _ in range(3)] == ["a ", "a ", "a "]
        answer.close()
    else:  # no answer comes, and the client gives up waiting
        with pytest.raises(openai.APITimeoutError):
            impatient.completions.create(model="scripted", prompt=prompt, stream=stream)
    impatient.close()
    assert gate.runtime.cancelled.acquire(timeout=PATIENCE_S)
    until_idle(gate)
    assert gate.figure("kvboost_answers_total", outcome="cancelled") == before + 1


def test_a_caller_that_goes_away_ends_no_other_call(gate: Gate) -> None:
    with gate.client.completions.create(model="scripted", prompt="endless", stream=True) as kept:
        next(kept)
        leaving = gate.client.completions.create(model="scripted", prompt="endless", stream=True)
        next(leaving)
        leaving.close()
        assert gate.runtime.cancelled.acquire(timeout=PATIENCE_S)
        for _ in range(20):
            next(kept)
        assert not gate.runtime.cancelled.acquire(blocking=False)
    assert gate.runtime.cancelled.acquire(timeout=PATIENCE_S)
    until_idle(gate)


def test_an_error_before_the_first_token_has_a_status(gate: Gate) -> None:
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="ran out of room") as caught:
            gate.ask("fail 0", stream=stream)
        assert caught.value.status_code == 500
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["type"] == "server_error"


def test_an_error_in_the_middle_of_a_stream_is_an_event(gate: Gate) -> None:
    stream = gate.client.completions.create(model="scripted", prompt="fail 3", stream=True)
    assert [next(stream).choices[0].text for _ in range(3)] == ["a "] * 3
    with pytest.raises(openai.APIError, match="ran out of room"):
        next(stream)


def test_an_answer_that_breaks_off_is_no_answer(gate: Gate) -> None:
    with pytest.raises(openai.InternalServerError, match="broke off"):
        gate.ask("break 2")
    with pytest.raises(openai.APIError, match="broke off"):
        list(gate.client.completions.create(model="scripted", prompt="break 2", stream=True))
    with pytest.raises(openai.InternalServerError, match="broke off"):
        list(gate.client.completions.create(model="scripted", prompt="break 0", stream=True))


def test_a_runtime_that_is_full_says_try_again(gate: Gate) -> None:
    with pytest.raises(openai.RateLimitError, match="try again later") as caught:
        gate.ask("full")
    assert caught.value.response.headers["retry-after"] == "1"


def test_a_full_gateway_says_try_again(gate: Gate) -> None:
    streams = [gate.client.completions.create(model="scripted", prompt="endless", stream=True) for _ in range(4)]
    with pytest.raises(openai.RateLimitError, match="4 requests are being served already"):
        gate.ask("ok 1")
    for stream in streams:
        stream.close()
    for _ in streams:
        assert gate.runtime.cancelled.acquire(timeout=PATIENCE_S)
    until_idle(gate)
    assert gate.ask("ok 1").choices[0].text == "a end"  # type: ignore[attr-defined]


def test_connections_are_used_again(gate: Gate) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: gate.ask("ok 2"), range(4)))
    assert {answer.choices[0].text for answer in answers} == {"a a end"}  # type: ignore[attr-defined]


def test_no_runtime_is_told_in_one_sentence_and_by_health() -> None:
    with gateway_server(["127.0.0.1:1"]) as gateway:
        client = OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60)
        with pytest.raises(openai.InternalServerError, match=r"no runtime answers at 127\.0\.0\.1:1") as caught:
            client.completions.create(model="scripted", prompt="ok 1")
        assert caught.value.status_code == 503
        assert list(client.models.list()) == []
        health = client._client.get(f"{gateway.address}/health")
        assert (health.status_code, health.json()["status"]) == (503, "unavailable")
        client.close()


def test_a_dead_cache_is_shown_and_is_no_obstacle() -> None:
    with scripted_runtime() as runtime, gateway_server([runtime.address], "127.0.0.1:1") as gateway:
        client = OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60)
        gate = Gate(runtime, gateway.address, client)
        gate.ask("ok 1")
        assert gate.figure("kvboost_cache_up", cache="127.0.0.1:1") == 0
        assert gate.figure("kvboost_runtime_up") == 1
        health = client._client.get(f"{gateway.address}/health")
        assert (health.status_code, health.json()["cache"]) == (200, {"127.0.0.1:1": False})
        assert client._client.get(f"{gateway.address}/kvboost/overview").json()["cache"]["up"] is False
        client.close()


def test_the_next_runtime_answers_for_one_that_failed_or_is_full() -> None:
    with (
        scripted_runtime() as one,
        scripted_runtime() as two,
        scripted_runtime("other") as other,
        gateway_server([one.address, two.address, other.address]) as gateway,
    ):
        client = OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60)
        assert [model.id for model in client.models.list()] == ["other", "scripted"]
        with pytest.raises(openai.RateLimitError, match="try again later"):
            client.completions.create(model="scripted", prompt="full")
        assert one.prompts == two.prompts == ["full"]
        assert other.prompts == []
        client.completions.create(model="other", prompt="ok 1")
        assert other.prompts == ["ok 1"]
        with client.completions.create(model="scripted", prompt="endless", stream=True) as busy:
            next(busy)
            # The runtime with fewer requests answers.
            client.completions.create(model="scripted", prompt="ok 1")
        assert sorted(one.prompts + two.prompts) == ["endless", "full", "full", "ok 1"]
        assert one.prompts != two.prompts
        client.close()


def test_figures_of_requests_add_up() -> None:
    with scripted_runtime() as runtime, gateway_server([runtime.address]) as gateway:
        client = OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60)
        gate = Gate(runtime, gateway.address, client)
        for prompt in ("ok 2", "ok 5"):
            gate.ask(prompt)
        with pytest.raises(openai.InternalServerError):
            gate.ask("fail 1")
        client._client.get(f"{gateway.address}/no/such/path")
        who = {"model": "scripted", "tenant": "ann"}
        assert gate.figure("kvboost_answers_total", outcome="ok", **who) == 2
        assert gate.figure("kvboost_answers_total", outcome="error", **who) == 1
        assert gate.figure("kvboost_prompt_tokens_total", tier="prefix", **who) == 8
        assert gate.figure("kvboost_prompt_tokens_total", tier="exact", **who) == 6
        assert gate.figure("kvboost_prompt_tokens_total", tier="computed", **who) == 6
        assert gate.figure("kvboost_recomputed_tokens_total", **who) == 2
        assert gate.figure("kvboost_generated_tokens_total", **who) == 7
        assert gate.figure("kvboost_saved_seconds_total", **who) == 3.0
        assert gate.figure("kvboost_stage_seconds_total", stage="match", **who) == 0.5
        assert gate.figure("kvboost_declined_total", **who) == 4
        assert gate.figure("kvboost_fallbacks_total", **who) == 2
        assert gate.figure("kvboost_ttft_seconds_count", tier="exact", **who) == 2
        assert gate.figure("kvboost_ttft_seconds_bucket", le="0.25", **who) == 0
        assert gate.figure("kvboost_ttft_seconds_bucket", le="0.5", **who) == 2
        assert gate.figure("kvboost_answer_seconds_count", **who) == 2
        assert gate.figure("kvboost_http_requests_total", path="/v1/completions", status="200") == 2
        assert gate.figure("kvboost_http_requests_total", path="/v1/completions", status="500") == 1
        assert gate.figure("kvboost_http_requests_total", path="other", status="404") == 1
        assert gate.figure("kvboost_runtime_up", runtime=runtime.address) == 1
        client.close()


def test_the_page_gets_runs_that_cover_the_prompt() -> None:
    with scripted_runtime() as runtime, gateway_server([runtime.address]) as gateway:
        client = OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60)
        client.completions.create(model="scripted", prompt="ok 2")
        answer = client._client.get(f"{gateway.address}/kvboost/overview")
        told = json.loads(answer.content)
        (request,) = told["requests"]
        assert [(run["tier"], run["start"], run["end"]) for run in request["runs"]] == [
            ("prefix", 0, 4),
            ("exact", 4, 8),
            ("computed", 8, 10),
        ]
        assert request["repaired"] == [[5, 6]]
        assert (request["reused_tokens"], request["new_tokens"], request["has_map"]) == (7, 2, False)
        assert b"ok 2" not in answer.content  # no prompt text unless asked for
        assert client._client.get(f"{gateway.address}/kvboost/requests/{request['id']}/map").status_code == 404
        assert {one["tier"] for one in told["palette"]["tiers"]} >= {"prefix", "exact", "similar", "computed"}
        client.close()
