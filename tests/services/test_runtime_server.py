"""The runtime service over a tiny model: answers, sampling, stops, scores, and what callers do wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import torch

from kvboost.client import RuntimeClient
from kvboost.client.runtime_types import Answer, ChatMessage, Finish, TokenPiece
from kvboost.errors import InputError, RuntimeUnavailableError
from kvboost.runtime.serve.answer import warm_up
from kvboost.sampling import GREEDY, Sampling
from kvboost.services.runtime_server import ServedModel
from kvboost.services.runtime_server.inputs import read_ask, token_ids_of
from kvboost.types import PutReceipt, PutRequest, Span, Tier
from kvboost.v1 import runtime_pb2 as pb
from kvboost.v1 import runtime_pb2_grpc as pb_grpc
from tests.boosting import document, tokenizer
from tests.runtime_service import Running, runtime_service, slow
from tests.tiny_models import MAX_POSITION, VOCAB_SIZE, tiny_tokenizer


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with runtime_service() as running:
        yield running


@pytest.fixture
def client(running: Running) -> RuntimeClient:
    return running.client


def decoded(answer: Answer) -> str:
    return tokenizer().decode(answer.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_describe(running: Running) -> None:
    info = running.client.describe()
    assert info.model == "tiny"
    assert info.namespace == running.served.engine.preparer.namespace
    assert info.max_context_tokens == MAX_POSITION
    assert {Tier.PREFIX, Tier.EXACT, Tier.SIMILAR} <= set(info.tiers)
    assert info.limits == ()


def test_a_new_prompt_is_answered_as_by_the_plain_model(client: RuntimeClient) -> None:
    text = document(1)
    answer = client.answer(text, max_new_tokens=12, sampling=GREEDY)
    plain = client.answer(text, max_new_tokens=12, sampling=GREEDY, skip_cache=True)
    assert (answer.token_ids, answer.text) == (plain.token_ids, plain.text)
    assert len(answer.token_ids) == 12
    assert answer.text == decoded(answer)
    assert answer.reason == "length"
    for report in (answer.report, plain.report):
        assert report.prompt_tokens == report.tokens_by_tier[Tier.COMPUTED] == len(tokenizer()(text)["input_ids"])
        assert [(s.span, s.tier) for s in report.spans] == [(Span(0, report.prompt_tokens), Tier.COMPUTED)]
        assert report.fallback is None
        assert 0 < report.stages_s["tokenise"] < report.ttft_s
    assert answer.token_texts == ()
    assert answer.score is None


def test_what_was_stored_is_reused_and_changes_nothing(client: RuntimeClient) -> None:
    text = document(2) + "\n\n" + document(3)
    client.answer(text, max_new_tokens=4, sampling=GREEDY, wait_for_store=True)
    again = client.answer(text + " And then?", max_new_tokens=12, sampling=GREEDY)
    plain = client.answer(text + " And then?", max_new_tokens=12, sampling=GREEDY, skip_cache=True)
    assert again.report.tokens_by_tier[Tier.PREFIX] > 0.8 * again.report.prompt_tokens
    assert again.report.spans[-1].tier == Tier.COMPUTED
    assert sum(len(s.span) for s in again.report.spans) == again.report.prompt_tokens
    assert {"match", "fetch", "queue", "tokenise"} <= again.report.stages_s.keys()
    assert again.token_ids == plain.token_ids


def test_skip_cache_neither_looks_up_nor_stores(running: Running) -> None:
    before = running.cache.stats().namespaces[0]
    running.client.answer(document(4), max_new_tokens=4, skip_cache=True, wait_for_store=True)
    assert running.cache.stats().namespaces[0] == before


def test_storing_goes_on_behind_the_answer(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    may_store, stored = threading.Event(), threading.Event()
    put = running.cache.put

    def held_put(request: PutRequest) -> PutReceipt:
        may_store.wait(60)
        receipt = put(request)
        stored.set()
        return receipt

    monkeypatch.setattr(running.cache, "put", held_put)
    running.client.answer(document(5), max_new_tokens=4)
    assert not stored.is_set()
    may_store.set()
    assert stored.wait(60)


def test_wait_for_store_ends_when_the_chunks_are_there(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    put = running.cache.put

    def slow_put(request: PutRequest) -> PutReceipt:
        time.sleep(0.3)
        return put(request)

    monkeypatch.setattr(running.cache, "put", slow_put)
    before = running.cache.stats().namespaces[0].chunks
    running.client.answer(document(23), max_new_tokens=4, wait_for_store=True)
    assert running.cache.stats().namespaces[0].chunks > before


def test_events_are_tokens_and_then_one_finish(client: RuntimeClient) -> None:
    *tokens, finish = client.generate(document(6), max_new_tokens=7, sampling=GREEDY)
    assert len(tokens) == 7
    assert all(isinstance(token, TokenPiece) for token in tokens)
    assert isinstance(finish, Finish)
    assert finish.new_tokens == 7


def test_a_chat_goes_through_the_template(client: RuntimeClient) -> None:
    chat = [ChatMessage("system", "Be brief."), ChatMessage("user", "What is water?")]
    answer = client.answer(chat, max_new_tokens=6, sampling=GREEDY, with_token_texts=True)
    expected = "<|system|>\nBe brief.</s>\n<|user|>\nWhat is water?</s>\n<|assistant|>\n"
    assert "".join(answer.token_texts) == expected
    ids = tokenizer()(expected, add_special_tokens=False)["input_ids"]
    assert client.answer(ids, max_new_tokens=6, sampling=GREEDY).token_ids == answer.token_ids


def test_token_texts_are_the_prompt(client: RuntimeClient) -> None:
    text = "A café – naïve 🙂. " + document(7)
    answer = client.answer(text, max_new_tokens=1, with_token_texts=True)
    assert "".join(answer.token_texts) == text
    assert len(answer.token_texts) == answer.report.prompt_tokens


def test_the_answer_ends_where_the_context_does(client: RuntimeClient) -> None:
    ids = [3 + i % 500 for i in range(MAX_POSITION - 5)]
    answer = client.answer(ids, sampling=GREEDY)
    assert (len(answer.token_ids), answer.reason) == (5, "length")


def test_the_default_length(client: RuntimeClient) -> None:
    assert len(client.answer(document(8), sampling=GREEDY).token_ids) == 256


def test_an_end_token_ends_the_answer(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    text = document(9)
    ids = running.client.answer(text, max_new_tokens=8, sampling=GREEDY, skip_cache=True).token_ids
    monkeypatch.setattr(running.model.generation_config, "eos_token_id", ids[4])
    answer = running.client.answer(text, max_new_tokens=8, sampling=GREEDY, skip_cache=True)
    assert answer.token_ids == ids[: ids.index(ids[4]) + 1]
    assert answer.reason == "stop"


def test_a_stop_text_ends_the_answer_and_is_no_part_of_it(client: RuntimeClient) -> None:
    text = document(10)
    full = client.answer(text, max_new_tokens=40, sampling=GREEDY).text
    stop = full[len(full) // 2 : len(full) // 2 + 3]
    pieces = list(client.generate(text, max_new_tokens=40, sampling=Sampling(temperature=0, stop=("never so", stop))))
    assert "".join(piece.text for piece in pieces) == full[: full.index(stop)]
    assert isinstance(pieces[-1], Finish)
    assert pieces[-1].reason == "stop"
    assert pieces[-1].new_tokens < 40


def test_a_seed_repeats_a_sample_and_is_gone_afterwards(running: Running) -> None:
    def sample(seed: int | None) -> tuple[int, ...]:
        sampling = Sampling(temperature=1.5, top_k=0, top_p=1.0, seed=seed)
        return running.client.answer(text, max_new_tokens=16, sampling=sampling).token_ids

    text = document(11)
    state = torch.get_rng_state()
    first = sample(7)
    assert torch.equal(torch.get_rng_state(), state)
    assert sample(7) == first
    assert sample(2**64 - 1) != first
    assert sample(None) != sample(None)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=0.0, top_p=0.5, top_k=7, seed=3),
        Sampling(temperature=1e-300),
        Sampling(top_k=1),
        Sampling(top_p=1e-9),
    ],
    ids=str,
)
def test_settings_that_leave_one_token_are_greedy(client: RuntimeClient, sampling: Sampling) -> None:
    text = document(12)
    greedy = client.answer(text, max_new_tokens=12, skip_cache=True).token_ids  # the model's default
    assert client.answer(text, max_new_tokens=12, sampling=sampling, skip_cache=True).token_ids == greedy


def test_a_cold_request_scores_as_equal_and_finds_nothing_of_its_own(running: Running) -> None:
    text = "@" + document(13)  # shares no first token with the other prompts
    hits = running.cache.stats().namespaces[0].hit_tokens
    answer = running.client.answer(text, max_new_tokens=12, score_against_full=True, wait_for_store=True)
    assert running.cache.stats().namespaces[0].hit_tokens == hits  # neither the answer nor the comparison after it
    score = answer.score
    assert score is not None
    assert score.kl_mean < 1e-5
    assert (score.top1_agreement, score.first_divergence, score.positions) == (1.0, None, 12)
    assert score.full_answer == answer.text
    assert score.full_ttft_s > 0
    again = running.client.answer(text, max_new_tokens=12)
    assert again.report.reused_tokens > 0  # stored all the same, afterwards


def test_a_pad_token_in_the_prompt_is_a_token_like_any_other(client: RuntimeClient) -> None:
    answer = client.answer(f"<pad>{document(24)}<pad>", max_new_tokens=8, score_against_full=True)
    assert answer.score is not None
    assert answer.score.kl_mean < 1e-5
    assert answer.score.full_answer == answer.text


def test_a_score_tells_what_moved_chunks_cost(client: RuntimeClient) -> None:
    one, two = document(14), document(15)
    client.answer(f"{one}\n\n{two}", max_new_tokens=4, wait_for_store=True)
    answer = client.answer(f"{two}\n\n{one}\n\nWhat did they say?", max_new_tokens=24, score_against_full=True)
    plain = client.answer(f"{two}\n\n{one}\n\nWhat did they say?", max_new_tokens=24, skip_cache=True)
    score = answer.score
    assert answer.report.tokens_by_tier[Tier.EXACT] > 40
    assert score is not None
    assert score.kl_mean > 1e-4
    assert score.kl_first > 0
    assert score.full_answer == plain.text
    pairs = list(zip(answer.token_ids, plain.token_ids, strict=True))
    assert score.first_divergence == next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)


def test_a_cancelled_answer_stops_and_lets_the_next_one_through(running: Running) -> None:
    with slow(running.model) as steps:
        events = running.client.generate(document(16), max_new_tokens=350, skip_cache=True)
        next(events)
        events.close()
        assert len(running.client.answer(document(17), max_new_tokens=3, skip_cache=True).token_ids) == 3
    assert steps[0] < 300


def test_a_deadline_ends_an_answer(running: Running) -> None:
    with slow(running.model) as steps:
        with pytest.raises(RuntimeUnavailableError, match="deadline"):
            running.client.answer(document(18), max_new_tokens=350, skip_cache=True, timeout_s=0.5)
        running.client.answer(document(19), max_new_tokens=3, skip_cache=True)
    assert steps[0] < 300


def test_warm_up_leaves_cache_and_counters_alone(running: Running) -> None:
    running.served.engine.writer.flush()  # of the requests before
    before = running.cache.stats().namespaces[0], running.served.engine.counters.snapshot()
    running.batch.run(lambda: warm_up(running.served.engine))
    assert (running.cache.stats().namespaces[0], running.served.engine.counters.snapshot()) == before


def test_counters_add_up(client: RuntimeClient) -> None:
    before = client.describe().counters
    answer = client.answer(document(22), max_new_tokens=2)
    after = client.describe().counters
    assert after["requests"] == before["requests"] + 1
    assert after["prompt_tokens"] == before["prompt_tokens"] + answer.report.prompt_tokens


def _with(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"prompt": "The water."} | fields))


def _chat(*roles: str) -> pb.GenerateRequest:
    turns = [pb.ChatMessage(role=role, content="water") for role in roles]
    return pb.GenerateRequest(chat=pb.ChatMessages(messages=turns))


def _ids(*ids: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (pb.GenerateRequest(), ["input", "prompt"]),
        (pb.GenerateRequest(prompt=""), ["prompt", "empty"]),
        (_chat(), ["chat.messages", "empty"]),
        (_chat("user", "tool"), ["chat.messages[1].role", "'tool'"]),
        (_ids(), ["token_ids.ids", "empty"]),
        (_ids(3, VOCAB_SIZE), ["token_ids.ids[1]", str(VOCAB_SIZE)]),
        (_ids(*[3] * MAX_POSITION), ["token_ids", str(MAX_POSITION), "shorten"]),
        (_with(prompt="water " * MAX_POSITION), ["prompt", str(MAX_POSITION), "shorten"]),
        (_with(sampling=pb.Sampling(temperature=-0.1)), ["temperature"]),
        (_with(sampling=pb.Sampling(temperature=float("nan"))), ["temperature"]),
        (_with(sampling=pb.Sampling(temperature=float("inf"))), ["temperature"]),
        (_with(sampling=pb.Sampling(top_p=0.0)), ["top_p"]),
        (_with(sampling=pb.Sampling(top_p=1.1)), ["top_p"]),
        (_with(sampling=pb.Sampling(stop=["a", ""])), ["stop"]),
        (_with(score_against_full=True, skip_cache=True), ["score_against_full", "skip_cache"]),
        (_with(score_against_full=True, sampling=pb.Sampling(temperature=1.0)), ["score_against_full", "temperature"]),
        (_with(score_against_full=True, sampling=pb.Sampling(top_p=0.9)), ["score_against_full", "top_p"]),
    ],
)
def test_what_does_not_fit_is_refused_by_name(running: Running, request_: pb.GenerateRequest, words: list[str]) -> None:
    with grpc.insecure_channel(running.client.address) as channel:
        call = pb_grpc.RuntimeServiceStub(channel).Generate(request_, timeout=60)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, caught.value.details()
    for word in words:
        assert word in caught.value.details()


def test_a_model_without_a_chat_template_refuses_chats(running: Running) -> None:
    served = ServedModel(running.served.engine, tiny_tokenizer(chat_template=None), "tiny")
    with pytest.raises(InputError, match="chat template"):
        token_ids_of(read_ask(_chat("user")), served)


def test_what_a_chat_template_refuses_is_the_callers_fault(running: Running) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    served = ServedModel(running.served.engine, tiny_tokenizer(chat_template=template), "tiny")
    with pytest.raises(InputError, match="roles must alternate"):
        token_ids_of(read_ask(_chat("user", "user")), served)


@pytest.mark.parametrize(
    "make",
    [lambda: Sampling(seed=-1), lambda: Sampling(top_k=-1), lambda: Sampling(stop="ab"), lambda: Sampling(stop=("",))],
)
def test_sampling_is_checked_on_the_callers_side_too(make: Callable[[], Sampling]) -> None:
    with pytest.raises(InputError, match=r"seed|top_k|stop"):
        make()


def test_misspelt_arguments_and_mixed_prompts_are_refused(client: RuntimeClient) -> None:
    with pytest.raises(TypeError, match="max_tokens"):
        client.answer("water", max_tokens=3)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="prompt"):
        client.answer([ChatMessage("user", "water"), 3])  # type: ignore[list-item]


def test_a_client_of_nothing_and_a_closed_one_say_so() -> None:
    client = RuntimeClient("127.0.0.1:1")
    with pytest.raises(RuntimeUnavailableError, match=r"127\.0\.0\.1:1"):
        client.describe()
    client.close()
    with pytest.raises(RuntimeUnavailableError, match="closed"):
        client.answer("water")
