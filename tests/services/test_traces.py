"""One trace for each request, through gateway, runtime and cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvboost.wire.tracing import server_interceptors, traced_channel
from tests.services.traced_request import TRACE

ROOT = Path(__file__).resolve().parents[2]
ANSWER, GENERATE = "kvboost answer", "kvboost.v1.RuntimeService/Generate"
# The second request repeats the first: of what it offers nothing is wanted.
CACHE_CALLS = [
    [f"kvboost.v1.CacheService/{name}" for name in names] for names in (("Match", "Offer", "Put"), ("Match", "Offer"))
]


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.services.traced_request"],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "Failed to detach context" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", [0, 1])
def test_a_request_is_one_trace_through_all_services(spans: list[dict[str, Any]], number: int) -> None:
    trace = f"{TRACE[:-1]}{number}"  # as the HTTP client named it
    own = [span for span in spans if span["trace"] == trace]
    by_id = {span["id"]: span for span in own}
    (answer,) = [span for span in own if span["name"] == ANSWER]
    top = answer
    while top["parent"] in by_id:  # newer FastAPI puts spans of its own above ours
        top = by_id[top["parent"]]
    assert top["parent"] == "00f067aa0ba902b7"  # the HTTP client's

    def path(span: dict[str, Any]) -> list[tuple[str, str]]:
        above = by_id.get(span["parent"]) if span is not answer else None
        return [*(path(above) if above else []), (span["name"], span["kind"])]

    asked = [(ANSWER, "INTERNAL"), (GENERATE, "CLIENT"), (GENERATE, "SERVER")]
    for call in CACHE_CALLS[number]:
        served = [span for span in own if span["name"] == call and span["kind"] == "SERVER"]
        assert served, call
        for span in served:
            assert path(span) == [*asked, (call, "CLIENT"), (call, "SERVER")]


def test_the_answer_says_what_was_reused(spans: list[dict[str, Any]]) -> None:
    first, second = [span["attributes"] for span in spans if span["name"] == ANSWER]
    assert first["kvboost.outcome"] == second["kvboost.outcome"] == "ok"
    assert first["kvboost.reused_tokens"] == 0
    assert second["kvboost.reused_tokens"] > 0.5 * second["kvboost.prompt_tokens"]
    assert second["kvboost.new_tokens"] == 4


def test_what_is_asked_every_few_seconds_is_no_trace(spans: list[dict[str, Any]]) -> None:
    assert {span["trace"] for span in spans} == {f"{TRACE[:-1]}{number}" for number in (0, 1)}


def test_no_span_holds_text_of_the_prompt(spans: list[dict[str, Any]]) -> None:
    assert "together" not in json.dumps(spans)


def test_without_a_provider_nothing_is_wrapped() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        assert traced_channel(channel) is channel
    assert server_interceptors() == ()
