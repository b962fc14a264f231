"""Several callers of the runtime service at once, over real gRPC."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from kvboost.client import RuntimeClient
from kvboost.client.runtime_types import Answer, BatchState, TokenPiece
from kvboost.errors import InputError, PromptError, RuntimeBusyError, RuntimeUnavailableError
from kvboost.policy import ReusePolicy
from kvboost.sampling import GREEDY, Sampling
from kvboost.types import Tier
from kvboost.v1 import runtime_pb2 as pb
from kvboost.v1 import runtime_pb2_grpc as pb_grpc
from tests.boosting import document
from tests.runtime_service import Running, runtime_service, slow
from tests.tiny_models import MAX_POSITION

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with runtime_service(policy=ReusePolicy(worth_it=False), prefill_tokens=64) as running:
        yield running


@pytest.fixture(scope="module")
def narrow() -> Iterator[Running]:
    with runtime_service(max_batch=1, max_queue=1) as running:
        yield running


def at_once(calls: list[Callable[[], Answer]]) -> list[Answer]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [job.result(TIMEOUT_S) for job in [pool.submit(call) for call in calls]]


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def test_eight_streams_at_once_are_those_of_single_calls(running: Running) -> None:
    client = running.client
    texts = [document(seed, sentences=1 + seed % 5) for seed in range(8)]

    def call(text: str, tokens: int) -> Callable[[], Answer]:
        return lambda: client.answer(text, max_new_tokens=tokens, sampling=GREEDY, skip_cache=True)

    calls = [call(text, 24 + i) for i, text in enumerate(texts)]
    single = [each() for each in calls]
    with slow(running.model, 0.01) as steps:
        together = at_once(calls)
    assert [each.token_ids for each in together] == [each.token_ids for each in single]
    assert [each.text for each in together] == [each.text for each in single]
    assert steps[0] < sum(len(each.token_ids) for each in single) / 2  # rows shared their steps
    for each in together:
        assert {"queue", "tokenise"} <= each.report.stages_s.keys()
        assert each.report.ttft_s > sum(each.report.stages_s.values())


def test_callers_with_different_settings_do_not_change_one_another(running: Running) -> None:
    client = running.client
    settings = [
        (GREEDY, 20),
        (Sampling(temperature=1.5, seed=1), 9),
        (Sampling(temperature=0.5, top_k=4, seed=1), 30),
        (Sampling(top_p=0.7, seed=2, repetition_penalty=1.3), 14),
        (Sampling(temperature=0.0, stop=("e",)), 40),
    ]
    text = document(40)

    def call(sampling: Sampling, tokens: int) -> Callable[[], Answer]:
        return lambda: client.answer(text, max_new_tokens=tokens, sampling=sampling, skip_cache=True)

    calls = [call(*each) for each in settings]
    single = [each() for each in calls]
    together = at_once(calls)
    assert [(each.token_ids, each.text, each.reason) for each in together] == [
        (each.token_ids, each.text, each.reason) for each in single
    ]
    assert len({each.token_ids for each in together}) == len(settings)


def test_a_caller_that_goes_frees_its_row(running: Running) -> None:
    with slow(running.model) as steps:
        stays = threading.Thread(target=lambda: running.client.answer(document(60), max_new_tokens=20, skip_cache=True))
        stays.start()
        events = running.client.generate(document(61), max_new_tokens=350, skip_cache=True)
        assert isinstance(next(events), TokenPiece)
        events.close()
        until(lambda: _state(running.client).running <= 1)
        stays.join()
        until(lambda: _state(running.client).running == 0)
        idle = steps[0]
        time.sleep(0.1)
        assert steps[0] == idle
    assert idle < 300


def test_a_client_that_is_killed_frees_its_row(running: Running) -> None:
    script = (
        "import sys\n"
        "from kvboost.client import RuntimeClient\n"
        "for event in RuntimeClient(sys.argv[1]).generate('water', max_new_tokens=400, skip_cache=True):\n"
        "    print(event, flush=True)\n"
    )
    before = running.client.describe().counters.get("cancelled_requests", 0)
    with slow(running.model):
        process = subprocess.Popen(
            [sys.executable, "-c", script, running.client.address], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert "TokenPiece" in process.stdout.readline()
        assert _state(running.client).running == 1
        process.kill()
        process.wait()
        process.stdout.close()
        until(lambda: _state(running.client).running == 0)
    assert running.client.describe().counters["cancelled_requests"] == before + 1


def test_a_deadline_ends_a_row_and_no_other(running: Running) -> None:
    with slow(running.model), ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: running.client.answer(document(62), max_new_tokens=60, skip_cache=True))
        with pytest.raises(RuntimeUnavailableError, match="deadline"):
            running.client.answer(document(63), max_new_tokens=400, skip_cache=True, timeout_s=0.4)
        assert len(other.result(TIMEOUT_S).token_ids) == 60
    until(lambda: _state(running.client).running == 0)


def test_a_scored_request_has_the_model_to_itself(running: Running) -> None:
    with slow(running.model, 0.002), ThreadPoolExecutor(2) as pool:
        other = pool.submit(lambda: running.client.answer(document(64), max_new_tokens=30, sampling=GREEDY))
        scored = running.client.answer(document(65), max_new_tokens=8, score_against_full=True)
        assert scored.score is not None
        assert scored.score.kl_mean < 1e-5
        assert len(other.result(TIMEOUT_S).token_ids) == 30


def test_a_full_runtime_refuses_and_takes_calls_again_when_there_is_room(narrow: Running) -> None:
    with slow(narrow.model):
        first = narrow.client.generate(document(1), max_new_tokens=300, skip_cache=True)
        next(first)
        second = narrow.client.generate(document(2), max_new_tokens=2, skip_cache=True)
        thread = threading.Thread(target=lambda: next(second))
        thread.start()
        until(lambda: _state(narrow.client).waiting == 1)
        with pytest.raises(RuntimeBusyError, match=r"1 requests are under way and 1 wait already; try again later"):
            narrow.client.answer(document(3), max_new_tokens=2)
        with grpc.insecure_channel(narrow.client.address) as channel:
            call = pb_grpc.RuntimeServiceStub(channel).Generate(pb.GenerateRequest(prompt="water"), timeout=TIMEOUT_S)
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        first.close()
        thread.join()
        assert len(list(second)) == 2
    assert _state(narrow.client) == BatchState(1, 1, 0, 0, "")


def test_a_caller_that_waits_is_told_how_long(narrow: Running) -> None:
    with slow(narrow.model):
        events = narrow.client.generate(document(20), max_new_tokens=20, skip_cache=True)
        next(events)
        second = narrow.client.answer(document(21), max_new_tokens=1, skip_cache=True)
        assert len(list(events)) == 20
    assert second.report.stages_s["queue"] > 0.1  # 19 steps of 20 ms lay before it
    assert second.report.ttft_s > second.report.stages_s["queue"]


def test_a_caller_that_goes_while_it_waits_makes_room(narrow: Running) -> None:
    with slow(narrow.model) as steps:
        first = narrow.client.generate(document(22), max_new_tokens=30, skip_cache=True)
        next(first)
        with pytest.raises(RuntimeUnavailableError, match="deadline"):
            narrow.client.answer(document(23), max_new_tokens=300, skip_cache=True, timeout_s=0.1)
        until(lambda: _state(narrow.client).waiting == 0)
        assert len(narrow.client.answer(document(24), max_new_tokens=2, skip_cache=True).token_ids) == 2
        assert len(list(first)) == 30
    assert steps[0] < 60


def test_warmed_documents_are_found_in_any_order(running: Running) -> None:
    documents = [document(70 + i, sentences=4) for i in range(3)]
    seen: list[int] = []
    receipts = running.client.warm(documents, on_receipt=lambda receipt: seen.append(receipt.index))
    assert seen == [receipt.index for receipt in receipts] == [0, 1, 2]
    for receipt in receipts:
        assert receipt.tokens > 30
        assert receipt.stored_chunks > 1
        assert receipt.refused_chunks == 0
        assert receipt.reused_tokens < 8  # as far as the documents of this module begin alike
        assert receipt.seconds > 0
    text = "\n\n".join([documents[2], documents[0], documents[1], "What did they all say about it today?"])
    report = running.client.answer(text, max_new_tokens=4, sampling=GREEDY).report
    assert report.reused_tokens + report.recomputed_tokens > 0.8 * report.prompt_tokens
    again = running.client.warm(documents[:1])[0]
    assert again.stored_chunks == 0
    assert again.reused_tokens > again.tokens - 20


def test_documents_behind_a_prefix_are_a_lossless_prefix_of_requests_that_begin_so(running: Running) -> None:
    prefix, text = "Be brief and answer in few words.", document(80, sentences=4)
    running.client.warm([text], prefix=prefix)
    answer = running.client.answer(f"{prefix}\n\n{text}\n\nAnd now?", max_new_tokens=8, sampling=GREEDY)
    plain = running.client.answer(f"{prefix}\n\n{text}\n\nAnd now?", max_new_tokens=8, skip_cache=True)
    assert answer.report.tokens_by_tier[Tier.PREFIX] > 0.8 * answer.report.prompt_tokens
    assert answer.token_ids == plain.token_ids


def test_documents_are_warmed_between_the_steps_of_answers(running: Running) -> None:
    with slow(running.model, 0.01):
        events = running.client.generate(document(90), max_new_tokens=100, sampling=GREEDY, skip_cache=True)
        next(events)
        receipts = running.client.warm([document(91 + i, sentences=6) for i in range(2)])
        assert _state(running.client).running == 1  # the answer goes on
        assert len(receipts) == 2
        assert len(list(events)) == 100


@pytest.mark.parametrize(
    ("documents", "error", "words"),
    [
        (["water", "  \n"], InputError, r"documents\[1\] is empty"),
        (["water " * MAX_POSITION], PromptError, rf"documents\[0\] has .* {MAX_POSITION}, .*; split it"),
        ("water", InputError, "list of texts"),
    ],
)
def test_documents_that_do_not_fit_are_refused_by_name(
    running: Running, documents: list[str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        running.client.warm(documents)


def test_nothing_to_warm(running: Running) -> None:
    assert running.client.warm([]) == ()
    with grpc.insecure_channel(running.client.address) as channel:
        call = pb_grpc.RuntimeServiceStub(channel).Warm(pb.WarmRequest(), timeout=TIMEOUT_S)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "documents is empty" in caught.value.details()


def test_many_documents_go_in_several_calls(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvboost.client.runtime_client.WARM_CALL_BYTES", 400)
    receipts = running.client.warm([document(100 + i) for i in range(5)])
    assert [receipt.index for receipt in receipts] == list(range(5))


def test_describe_tells_how_many_requests_there_may_be(running: Running) -> None:
    assert _state(running.client) == BatchState(8, 64, 0, 0, "")


def _state(client: RuntimeClient) -> BatchState:
    state = client.describe().batch
    assert state is not None
    return state
