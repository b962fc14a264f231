"""Log-probabilities through the runtime service and the gateway, against a forward pass of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from openai import OpenAI

from kvboost.client.runtime_types import ChatMessage, TokenPiece
from kvboost.errors import InputError, SupportError
from kvboost.sampling import GREEDY, Sampling
from kvboost.services.runtime_server.token_bytes import token_bytes
from tests.boosting import document, tokenizer
from tests.runtime_service import Running, runtime_service
from tests.servers import gateway_server
from tests.tiny_models import VOCAB_SIZE

TOLERANCE = 1e-4
PROMPT = document(1)
SKIP = {"kvboost": {"skip_cache": True}}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with runtime_service() as running:
        yield running


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[OpenAI]:
    with (
        gateway_server([running.client.address]) as gateway,
        OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


def expected(running: Running, prompt_ids: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
    """Return ``[answer, vocab]`` log-probabilities by one plain pass over prompt and answer."""
    with torch.no_grad():
        logits = running.model(input_ids=torch.tensor([[*prompt_ids, *answer]]), use_cache=False).logits[0]
    scores: torch.Tensor = logits[len(prompt_ids) - 1 : -1].float().log_softmax(-1)
    return scores


def pieces_of(running: Running, **options: Any) -> list[TokenPiece]:
    events = running.client.generate(PROMPT, max_new_tokens=6, **options)
    return [event for event in events if isinstance(event, TokenPiece)]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=2.0, top_k=40, seed=3, repetition_penalty=1.3)])
def test_they_are_the_log_softmax_of_the_models_logits(running: Running, sampling: Sampling) -> None:
    pieces = pieces_of(running, sampling=sampling, logprobs=4)
    answer = [piece.id for piece in pieces]
    scores = expected(running, tokenizer()(PROMPT)["input_ids"], answer)
    assert len(pieces) == 6
    for piece, row in zip(pieces, scores, strict=True):
        assert piece.logprob is not None
        assert piece.logprob.id == piece.id
        assert piece.logprob.logprob == pytest.approx(float(row[piece.id]), abs=TOLERANCE)
        values, ids = row.topk(4)
        assert [one.logprob for one in piece.top_logprobs] == pytest.approx(values.tolist(), abs=TOLERANCE)
        assert {one.id for one in piece.top_logprobs} == set(ids.tolist())


def test_they_come_only_where_they_are_asked_for(running: Running) -> None:
    assert all(piece.logprob is None and not piece.top_logprobs for piece in pieces_of(running, sampling=GREEDY))
    alone = pieces_of(running, sampling=GREEDY, logprobs=0)
    assert all(piece.logprob is not None and not piece.top_logprobs for piece in alone)


def test_the_end_token_goes_without(running: Running) -> None:
    third = pieces_of(running, sampling=GREEDY)[2].id
    config = running.model.generation_config
    config.eos_token_id = third
    try:
        pieces = pieces_of(running, sampling=GREEDY, logprobs=1)
    finally:
        config.eos_token_id = None
    assert pieces[-1].id == third
    assert [piece.logprob is None for piece in pieces] == [piece.id == third for piece in pieces]


def test_what_cannot_be_given_is_refused_by_name(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="logprobs is 21; ask for at most 20"):
        pieces_of(running, logprobs=21)
    with pytest.raises(InputError, match="logprobs is not given together with score_against_full"):
        pieces_of(running, logprobs=1, score_against_full=True)
    monkeypatch.setattr(running.batch, "obstacle", "its rows cannot share a step")
    with pytest.raises(SupportError, match="logprobs is not given for this model, since its rows cannot"):
        pieces_of(running, logprobs=1)


def test_tokens_of_half_a_character_have_bytes(running: Running) -> None:
    for text in (" the water", "水は冷たい", "naïve 🌊"):
        ids = tokenizer()(text, add_special_tokens=False)["input_ids"]
        parts = [token_bytes(running.served, token) for token in ids]
        assert b"".join(utf8 or b"?" for _, utf8 in parts).decode() == text
    assert token_bytes(running.served, tokenizer().eos_token_id)[0] == tokenizer().eos_token
    assert all(
        token_bytes(running.served, token)[1] is not None for token in range(VOCAB_SIZE) if token < len(tokenizer())
    )


def chat(client: OpenAI, **options: Any) -> Any:
    settings = {
        "model": "tiny",
        "temperature": 0,
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 3,
        "extra_body": SKIP,
    }
    return client.chat.completions.create(messages=[{"role": "user", "content": PROMPT}], **settings | options)  # type: ignore[call-overload]


def test_a_chat_has_them_in_openais_form(client: OpenAI, running: Running) -> None:
    (choice,) = chat(client).choices
    tokens = choice.logprobs.content
    plain = running.client.answer([ChatMessage("user", PROMPT)], max_new_tokens=8, sampling=GREEDY, skip_cache=True)
    text = b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace")
    assert text == choice.message.content == plain.text
    ids = tokenizer().apply_chat_template([{"role": "user", "content": PROMPT}], add_generation_prompt=True)
    scores = expected(running, ids["input_ids"], plain.token_ids)
    assert [token.logprob for token in tokens] == pytest.approx(
        [float(row[i]) for row, i in zip(scores, plain.token_ids, strict=True)], abs=TOLERANCE
    )
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)  # greedy
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob >= token.top_logprobs[2].logprob


def test_a_stream_has_the_same_beside_the_text(client: OpenAI) -> None:
    whole = chat(client).choices[0].logprobs.content
    chunks = [chunk.choices[0] for chunk in chat(client, stream=True)]
    streamed = [token for choice in chunks if choice.logprobs for token in choice.logprobs.content]
    assert [token.token for token in streamed] == [token.token for token in whole]
    assert [token.logprob for token in streamed] == pytest.approx([token.logprob for token in whole], abs=TOLERANCE)
    assert all(choice.logprobs for choice in chunks if choice.delta.content)


def test_without_the_wish_there_are_none(client: OpenAI) -> None:
    (choice,) = chat(client, logprobs=False, top_logprobs=None).choices
    assert choice.logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_completions_have_parallel_lists(client: OpenAI, stream: bool) -> None:
    answer: Any = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=8, temperature=0, logprobs=2, stream=stream
    )
    choices = [chunk.choices[0] for chunk in (answer if stream else [answer])]
    text = "".join(choice.text for choice in choices)
    told = [choice.logprobs for choice in choices if choice.logprobs]
    tokens = [token for each in told for token in each.tokens]
    offsets = [offset for each in told for offset in each.text_offset]
    values = [value for each in told for value in each.token_logprobs]
    assert len(tokens) == len(offsets) == len(values) == 8
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(text)
    for token, value, top in zip(tokens, values, (top for each in told for top in each.top_logprobs), strict=True):
        assert top[token] == pytest.approx(value)
        assert 1 <= len(top) <= 3
