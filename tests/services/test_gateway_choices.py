"""Several answers to one request: the prompt computed once, the answers different and repeatable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.boosting import document
from tests.runtime_service import runtime_service
from tests.servers import gateway_server

DRAWN: dict[str, Any] = {"temperature": 1.5, "max_tokens": 8}


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with (
        runtime_service() as running,
        gateway_server([running.client.address]) as gateway,
        OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


def chat(client: OpenAI, text: str, **options: Any) -> Any:
    turns = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="tiny", messages=turns, **DRAWN | options)  # type: ignore[call-overload]


def test_choices_differ_and_a_seed_repeats_them(client: OpenAI) -> None:
    skip = {"kvboost": {"skip_cache": True}}
    first, second, one = (chat(client, document(1), n=n, seed=7, extra_body=skip) for n in (3, 3, 1))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [choice.message.content for choice in second.choices] == texts
    assert one.choices[0].message.content == texts[0]


def test_without_a_seed_they_differ_too(client: OpenAI) -> None:
    assert len({choice.message.content for choice in chat(client, document(2), n=3).choices}) == 3


def test_the_prompt_is_computed_and_counted_once(client: OpenAI) -> None:
    answer = chat(client, document(3, sentences=12), n=3)
    first, *others = answer.model_extra["kvboost"]["choices"]
    prompt = answer.usage.prompt_tokens
    assert sum(first["tokens_by_tier"].values()) == prompt
    assert answer.usage.completion_tokens == 3 * 8
    assert answer.usage.total_tokens == prompt + 24
    assert answer.usage.prompt_tokens_details.cached_tokens == first["reused_tokens"]
    for other in others:
        assert other["lossless"]
        assert other["tokens_by_tier"]["prefix"] == prompt - 1  # the last one gives the logits


def test_a_stream_of_choices_names_each_by_its_index(client: OpenAI) -> None:
    whole = chat(client, document(4), n=2, seed=1, extra_body={"kvboost": {"skip_cache": True}})
    chunks = list(
        chat(
            client,
            document(4),
            n=2,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"kvboost": {"skip_cache": True}},
        )
    )
    told = [choice for chunk in chunks for choice in chunk.choices]
    for choice in whole.choices:
        own = [one for one in told if one.index == choice.index]
        assert own[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in own) == choice.message.content
        assert [one.finish_reason for one in own if one.finish_reason] == ["length"]
    assert chunks[-1].usage == whole.usage


def test_completions_answer_a_list_of_prompts(client: OpenAI) -> None:
    prompts = [document(5), document(6)]
    settings: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 6, "logprobs": 1}
    skip = {"kvboost": {"skip_cache": True}}
    both = client.completions.create(prompt=prompts, **settings, extra_body=skip)
    alone = [client.completions.create(prompt=prompt, **settings, extra_body=skip) for prompt in prompts]
    assert [choice.text for choice in both.choices] == [each.choices[0].text for each in alone]
    assert [choice.index for choice in both.choices] == [0, 1]
    assert all(
        choice.logprobs and choice.logprobs.text_offset and choice.logprobs.text_offset[0] == 0
        for choice in both.choices
    )
    assert both.usage is not None
    assert both.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in alone if each.usage)
    doubled = client.completions.create(prompt=prompts, n=2, **settings, extra_body=skip)
    assert [choice.text for choice in doubled.choices] == [each.choices[0].text for each in alone for _ in range(2)]
    assert doubled.usage is not None
    assert doubled.usage.prompt_tokens == both.usage.prompt_tokens


def test_too_many_answers_are_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt holds 3 prompts, with n 50; ask for at most 128 answers"):
        client.completions.create(model="tiny", prompt=["a", "b", "c"], n=50)
