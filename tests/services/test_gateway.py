"""The gateway as OpenAI's own client sees it: a real gateway process before a real runtime and cache."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from kvboost.client import RuntimeClient
from kvboost.client.runtime_types import Answer, ChatMessage
from kvboost.sampling import GREEDY
from tests.boosting import document, tokenizer
from tests.servers import cache_server, gateway_server, runtime_server
from tests.tiny_models import VOCAB_SIZE, tiny_model, tiny_tokenizer

CONTEXT_TOKENS = 2048
STORE = {"kvboost": {"wait_for_store": True}}
SKIP = {"kvboost": {"skip_cache": True}}


@dataclass(frozen=True)
class Stack:
    url: str
    client: OpenAI
    runtime: RuntimeClient
    model: str = "tiny"

    def chat(self, *contents: str, **options: Any) -> Any:
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
        settings = {"model": self.model, "temperature": 0, "max_tokens": 12, **options}
        return self.client.chat.completions.create(messages=messages, **settings)  # type: ignore[arg-type]

    def complete(self, prompt: Any, **options: Any) -> Any:
        settings = {"model": self.model, "temperature": 0, "max_tokens": 12, **options}
        return self.client.completions.create(prompt=prompt, **settings)

    def plain(self, prompt: Any, tokens: int = 12) -> Answer:
        """Answer by the plain model, without the gateway."""
        return self.runtime.answer(prompt, max_new_tokens=tokens, sampling=GREEDY, skip_cache=True)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("gateway") / "tiny"
    model = tiny_model("llama", max_position_embeddings=CONTEXT_TOKENS)
    model.generation_config.eos_token_id = None  # answers as long as asked for
    model.save_pretrained(folder)
    tiny_tokenizer(model_max_length=CONTEXT_TOKENS).save_pretrained(folder)
    with ExitStack() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))  # what the start-up gate finds is not the user's
        cache = running.enter_context(cache_server())
        runtime = running.enter_context(runtime_server(cache.address, folder))
        gateway = running.enter_context(gateway_server([runtime.address], cache.address))
        client = OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60)
        direct = RuntimeClient(runtime.address)
        yield Stack(gateway.address, client, direct)
        client.close()
        direct.close()


def test_models_are_listed_by_name(stack: Stack) -> None:
    assert [model.id for model in stack.client.models.list()] == ["tiny"]
    assert stack.client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="'nothing' is not served here; choose one of tiny"):
        stack.client.models.retrieve("nothing")


def test_a_chat_is_answered_as_by_the_plain_model(stack: Stack) -> None:
    answer = stack.chat(document(1))
    plain = stack.plain([ChatMessage("user", document(1))])
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", plain.text)
    assert choice.finish_reason == "length"
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    assert answer.usage.prompt_tokens == plain.report.prompt_tokens
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == plain.report.prompt_tokens + 12
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.model_extra["kvboost"]["reused_tokens"]


def test_a_streamed_chat_is_the_same_and_ends_with_its_report(stack: Stack) -> None:
    chunks = list(stack.chat(document(2), stream=True, extra_body=SKIP))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        == stack.plain([ChatMessage("user", document(2))]).text
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    report = chunks[-1].model_extra["kvboost"]
    assert report["reused_tokens"] == 0
    assert report["ttft_s"] > 0
    (run,) = report["runs"]
    assert (run["tier"], run["start"], run["end"]) == ("computed", 0, sum(report["tokens_by_tier"].values()))


def test_usage_of_a_stream_comes_last_where_it_is_asked_for(stack: Stack) -> None:
    *chunks, last = stack.chat(document(3), stream=True, stream_options={"include_usage": True}, extra_body=SKIP)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage.completion_tokens == 12
    assert last.usage.prompt_tokens_details.cached_tokens == 0
    assert last.model_extra["kvboost"]["tokens_by_tier"]["computed"] == last.usage.prompt_tokens


def test_the_next_turn_of_a_chat_is_cached(stack: Stack) -> None:
    opening = document(4, sentences=12)
    first = stack.chat(opening, extra_body=STORE)
    said = first.choices[0].message.content
    second = stack.chat(opening, said, "And then?")
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached > 0.8 * second.usage.prompt_tokens
    report = second.model_extra["kvboost"]
    assert report["lossless"]
    assert report["tokens_by_tier"]["prefix"] == cached
    turns = [ChatMessage("user", opening), ChatMessage("assistant", said), ChatMessage("user", "And then?")]
    assert second.choices[0].message.content == stack.plain(turns).text


def test_roles_and_parts_are_read_as_openai_has_them(stack: Stack) -> None:
    parts = [{"type": "text", "text": "The water "}, {"type": "text", "text": "is here."}]
    answer = stack.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "developer", "content": "Be short."}, {"role": "user", "content": parts, "name": "Ann"}],  # type: ignore[typeddict-item, misc, list-item]
        temperature=0,
        max_completion_tokens=5,
        user="ann",
    )
    turns = [ChatMessage("system", "Be short."), ChatMessage("user", "The water is here.")]
    assert answer.choices[0].message.content == stack.plain(turns, 5).text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


@pytest.mark.parametrize("listed", [False, True])
def test_texts_and_token_ids_are_completed(stack: Stack, listed: bool) -> None:
    text = document(5)
    ids = tokenizer()(text)["input_ids"]
    plain = stack.plain(text)
    for prompt in (text, ids):
        answer = stack.complete([prompt] if listed else prompt)
        assert (answer.object, answer.choices[0].text) == ("text_completion", plain.text)
        assert answer.usage.prompt_tokens == plain.report.prompt_tokens


def test_a_completion_is_streamed(stack: Stack) -> None:
    *chunks, last = stack.complete(document(6), stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == stack.plain(document(6)).text
    assert last.choices[0].finish_reason == "length"
    assert last.model_extra["kvboost"]["runs"][-1]["tier"] == "computed"


def test_a_stop_text_ends_the_answer(stack: Stack) -> None:
    whole = stack.complete(document(7), max_tokens=30).choices[0].text
    stop = whole[len(whole) // 2 :][:3]
    answer = stack.complete(document(7), max_tokens=30, stop=stop)
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_seed_repeats_a_random_answer(stack: Stack) -> None:
    def drawn(seed: int) -> str:
        return stack.complete(document(8), temperature=1.5, top_p=0.99, seed=seed, max_tokens=20).choices[0].text

    assert drawn(7) == drawn(7)
    assert len({drawn(seed) for seed in range(4)}) > 1


def test_the_loss_against_full_prefill_is_told_where_it_is_asked_for(stack: Stack) -> None:
    answer = stack.chat(document(9), extra_body={"kvboost": {"score_against_full": True}})
    score = answer.model_extra["kvboost"]["score"]
    assert score["kl_mean"] == pytest.approx(0.0, abs=1e-6)
    assert score["full_answer"] == answer.choices[0].message.content


def test_what_openai_has_not_and_the_runtime_has_is_passed_on(stack: Stack) -> None:
    greedy = stack.complete(document(8), max_tokens=20).choices[0].text
    warm = {"temperature": 1.5, "seed": 1, "max_tokens": 20}
    assert stack.complete(document(8), extra_body={"top_k": 1}, **warm).choices[0].text == greedy
    penalised = stack.complete(document(8), extra_body={"repetition_penalty": 5.0}, max_tokens=20)
    assert penalised.choices[0].text != greedy


def test_values_that_ask_for_nothing_are_no_obstacle(stack: Stack) -> None:
    nothing = {"n": 1, "logprobs": False, "presence_penalty": 0.0, "response_format": {"type": "text"}, "tools": []}
    plain = stack.plain([ChatMessage("user", "The water.")])
    assert stack.chat("The water.", extra_body=nothing, metadata={"a": "b"}).choices[0].message.content == plain.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "code", "words"),
    [
        ("water " * CONTEXT_TOKENS, "context_length_exceeded", "shorten"),
        ("", "empty_prompt", "empty"),
        ([3, VOCAB_SIZE], None, "below 512"),
    ],
)
def test_what_the_runtime_refuses_has_its_status_before_a_stream_begins(
    stack: Stack, prompt: Any, code: str | None, words: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        stack.complete(prompt, stream=stream)
    assert caught.value.code == code


def test_a_caller_that_goes_away_frees_its_row_of_the_batch(stack: Stack) -> None:
    def cancelled() -> int:
        return stack.runtime.describe().counters.get("cancelled_requests", 0)

    before = cancelled()
    with stack.complete(document(10), max_tokens=CONTEXT_TOKENS - 200, stream=True) as answer:
        for _ in range(3):
            next(answer)
    end_s = time.monotonic() + 60
    while cancelled() == before:
        assert time.monotonic() < end_s, "the row goes on"
        time.sleep(0.05)


def test_prompts_are_shown_only_where_that_was_asked_for(stack: Stack) -> None:
    with gateway_server([stack.runtime.address], "", "--show-prompts") as showing:
        client = OpenAI(base_url=f"{showing.address}/v1", api_key="none", max_retries=0, timeout=60)
        text = "The <b>river</b> and the mountain together."
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}], max_tokens=2)
        (request,) = client._client.get(f"{showing.address}/kvboost/overview").json()["requests"]
        assert request["has_map"]
        page = client._client.get(f"{showing.address}/kvboost/requests/{request['id']}/map")
        assert page.status_code == 200
        assert "mountain" in re.sub(r"<[^>]+>", "", page.text)
        assert "<b>river" not in page.text
        client.close()
    hidden = stack.client._client.get(f"{stack.url}/kvboost/overview").json()["requests"]
    assert not any(request["has_map"] for request in hidden)
    assert stack.client._client.get(f"{stack.url}/kvboost/requests/{hidden[0]['id']}/map").status_code == 404


def test_health_names_who_answers(stack: Stack) -> None:
    answer = stack.client._client.get(f"{stack.url}/health")
    assert answer.status_code == 200
    body = answer.json()
    assert body["status"] == "ok"
    assert list(body["runtimes"].values()) == [True]
    assert list(body["cache"].values()) == [True]


def test_the_folder_of_the_model_is_a_name_for_it_too(stack: Stack, tmp_path: Path) -> None:
    directory = stack.runtime.describe().model
    assert Path(directory).is_dir()
    assert stack.chat("The water.", model=directory).model == directory
