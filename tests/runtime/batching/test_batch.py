"""Answers of a batch against those of the single path, while rows come and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kvboost.policy import ReusePolicy
from kvboost.runtime.batching import Batch
from kvboost.runtime.serve.engine import Engine
from kvboost.sampling import Sampling
from kvboost.types import PutReceipt, Tier
from tests.boosting import boosted, document, prompt, settle, warm
from tests.runtime.batching.listeners import Heard, alone, ask, request
from tests.tiny_models import random_ids, tiny_model


@contextmanager
def batch_of(arch: str = "llama", policy: ReusePolicy | None = None, **limits: int) -> Iterator[tuple[Engine, Batch]]:
    model = tiny_model(arch)
    model.generation_config.eos_token_id = None
    with boosted(model=model, policy=policy):
        batch = Batch(settle(model), **limits)
        try:
            yield batch.engine, batch
        finally:
            batch.close()


def ids(length: int, seed: int) -> list[int]:
    return random_ids(length, seed)[0].tolist()


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma2", "gemma3", "phi", "cohere2"])
def test_greedy_answers_are_those_of_generate_while_rows_come_and_go(arch: str) -> None:
    with batch_of(arch, max_batch=3, prefill_tokens=16) as (engine, batch):
        assert batch.obstacle == ""
        asked = [request(ids(5 + 13 * i, i), 3 + 5 * (i % 4), skip_cache=True) for i in range(7)]
        expected = [alone(engine, each) for each in asked]
        heard = [Heard() for _ in asked]
        for each, listener in zip(asked, heard, strict=True):
            batch.submit(each, listener)
        assert [listener.answer() for listener in heard] == expected
        assert batch.state().running == batch.state().waiting == 0


def test_reuse_is_that_of_the_single_path(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [document(seed, sentences=3) for seed in range(4)]
    policy = ReusePolicy(recompute_ratio=0.5, worth_it=False, continuing=False)
    with batch_of(policy=policy, prefill_tokens=24) as (engine, batch):
        warm(engine.model, prompt(*documents))
        # Every request meets the same cache.
        monkeypatch.setattr(engine.preparer.cache, "put", lambda put: PutReceipt())
        prompts = [prompt(*(documents[j] for j in order)) for order in ((2, 0), (3, 1, 0), (1, 2, 3))]
        expected = []
        for each in prompts:
            result, report = engine.generate(each, max_new_tokens=12, do_sample=False)
            expected.append((result[0, each.shape[1] :].tolist(), report))
        heard = [ask(batch, each[0].tolist(), 12) for each in prompts]
        for listener, (tokens, report) in zip(heard, expected, strict=True):
            assert listener.answer() == tokens
            got = listener.report()
            assert got.tokens_by_tier == report.tokens_by_tier
            assert got.tokens_by_tier[Tier.EXACT] > 20
            assert (got.recomputed_tokens, got.spans) == (report.recomputed_tokens, report.spans)
            assert got.recomputed_tokens > 0


SAMPLINGS = [
    Sampling(temperature=0.0),
    Sampling(temperature=1.5, seed=3),
    Sampling(temperature=0.7, top_k=5, seed=3),
    Sampling(top_p=0.6, seed=4),
    Sampling(temperature=0.0, repetition_penalty=1.8),
    Sampling(temperature=2.0, top_k=0, top_p=0.9, seed=2**64 - 1, repetition_penalty=1.2),
    Sampling(temperature=1e-300),
]


def test_each_row_is_sampled_by_its_own_settings() -> None:
    with batch_of() as (engine, batch):
        asked = [request(ids(20 + i, 7), 12, each, skip_cache=True) for i, each in enumerate(SAMPLINGS)]
        expected = [alone(engine, each) for each in asked]
        heard = [Heard() for _ in asked]
        for each, listener in zip(asked, heard, strict=True):
            batch.submit(each, listener)
        assert [listener.answer() for listener in heard] == expected


def test_a_seed_repeats_a_row_whatever_its_neighbours_are() -> None:
    with batch_of() as (_, batch):
        wanted = Sampling(temperature=1.5, seed=11)
        first = ask(batch, ids(20, 1), 16, wanted, skip_cache=True).answer()
        crowd = [ask(batch, ids(9 + i, i), 30, Sampling(temperature=1.0), skip_cache=True) for i in range(4)]
        again = ask(batch, ids(20, 1), 16, wanted, skip_cache=True).answer()
        assert again == first
        assert len({tuple(each.answer()) for each in crowd}) == 4


def test_a_row_stops_at_its_own_end_and_when_told_to() -> None:
    with batch_of() as (engine, batch):
        plain = alone(engine, request(ids(20, 1), 12, skip_cache=True))
        stop = plain[4]
        engine.model.generation_config.eos_token_id = stop
        told = ask(batch, ids(20, 2), 12, skip_cache=True, heard=Heard(lambda count: count == 3))
        ended = ask(batch, ids(20, 1), 12, skip_cache=True)
        assert len(told.answer()) == 3
        assert not told.ended().answer.ended
        assert ended.answer() == plain[: plain.index(stop) + 1]
        assert ended.ended().answer.ended


def test_a_long_prompt_holds_running_rows_up_for_one_piece_at_a_time() -> None:
    with batch_of(prefill_tokens=32) as (engine, batch):
        passes: list[int] = []  # tokens of each forward pass
        engine.model.register_forward_pre_hook(
            lambda module, args, kwargs: passes.append(kwargs["input_ids"].numel()), with_kwargs=True
        )
        at: list[int] = []
        started = threading.Event()

        def note(count: int) -> None:
            at.append(len(passes))
            started.set()

        long = request(ids(300, 3), 4, skip_cache=True)
        running = ask(batch, ids(10, 1), 40, skip_cache=True, heard=Heard(note))
        assert started.wait(60)
        late = [Heard() for _ in range(3)]
        for listener in late:
            batch.submit(long, listener)
        answers = [listener.answer() for listener in late]
        running.answer()
        assert max(b - a for a, b in pairwise(at)) <= 2  # one step, and one piece before it
        assert max(passes) <= 300
        assert sum(n == 32 for n in passes) > 9
        assert answers == [alone(engine, long)] * 3


def test_requests_are_begun_in_order_of_arrival() -> None:
    with batch_of(max_batch=2) as (_, batch):
        order: list[int] = []
        heard = [
            ask(batch, ids(30, i), 6, skip_cache=True, heard=Heard(lambda count, i=i: order.append(i)))  # type: ignore[misc]
            for i in range(6)
        ]
        for listener in heard:
            listener.answer()
        assert list(dict.fromkeys(order)) == list(range(6))


def test_a_chat_finds_its_own_last_turn() -> None:
    with batch_of() as (_, batch):
        text = prompt(document(1, sentences=8))[0].tolist()
        first = ask(batch, text, 8)
        answer = first.answer()
        second = ask(batch, [*text, *answer, *ids(6, 2)], 4)
        assert second.report().tokens_by_tier[Tier.PREFIX] >= len(text)
        assert {"queue", "match"} <= second.report().stages_s.keys()


def test_what_a_row_computed_is_stored_and_a_request_without_an_answer_only_stores() -> None:
    with batch_of() as (engine, batch):
        text = prompt(document(1, sentences=8))[0].tolist()
        ended = ask(batch, text, 0).ended()
        assert ended.stored is not None
        assert ended.stored.result(60).stored > 2
        assert ended.answer.token_ids == ()
        assert engine.counters.snapshot()["requests"] == 1
        again = ask(batch, [*text, 7, 8], 4)
        assert again.report().tokens_by_tier[Tier.PREFIX] >= len(text) - 16
        skipped = ask(batch, [*text, 7, 8], 4, skip_cache=True)
        assert skipped.report().reused_tokens == 0
        assert skipped.ended().stored is None


def test_sampled_rows_are_audited() -> None:
    documents = [document(seed, sentences=4) for seed in range(3)]
    with batch_of(policy=ReusePolicy(audit_rate=1.0, worth_it=False)) as (engine, batch):
        ask(batch, prompt(*documents)[0].tolist(), 2).answer()
        heard = [ask(batch, prompt(*(documents[j] for j in order))[0].tolist(), 6) for order in ((1, 0), (2, 1))]
        assert all(not listener.report().lossless for listener in heard)
        engine.audit.flush(60)
        assert engine.counters.snapshot()["audits"] == 2
        assert [record.difference.answer_tokens for record in engine.audit.log.records()] == [6, 6]


@pytest.mark.parametrize("arch", ["gpt2", "bloom", "deepseek_v3"])
def test_a_model_whose_rows_cannot_share_a_step_answers_one_after_the_other(arch: str) -> None:
    with batch_of(arch) as (engine, batch):
        assert batch.obstacle
        asked = [request(ids(20 + i, i), 6) for i in range(3)]
        expected = [alone(engine, request(each.token_ids, 6, skip_cache=True)) for each in asked]
        heard = [Heard() for _ in asked]
        for each, listener in zip(asked, heard, strict=True):
            batch.submit(each, listener)
        assert [listener.answer() for listener in heard] == expected
        assert all("queue" in listener.report().stages_s for listener in heard)


def test_work_of_its_own_waits_until_nothing_else_is_under_way() -> None:
    with batch_of() as (_, batch):
        running = ask(batch, ids(20, 1), 20, skip_cache=True)
        found: list[Any] = []
        batch.run(lambda: found.append((running.over.is_set(), len(running.tokens))))
        assert found == [(True, 20)]
        with pytest.raises(ZeroDivisionError):
            batch.run(lambda: found.append(1 // 0))
        assert len(ask(batch, ids(20, 1), 2, skip_cache=True).answer()) == 2


def test_the_models_own_generation_settings_hold_for_every_row() -> None:
    with batch_of() as (engine, batch):
        config = engine.model.generation_config
        config.do_sample, config.temperature, config.top_k = True, 0.8, 20
        config.repetition_penalty, config.no_repeat_ngram_size = 1.3, 3
        asked = [request(ids(20 + i, i), 12, Sampling(seed=i), skip_cache=True) for i in range(3)]
        asked.append(request(ids(20, 9), 12, Sampling(temperature=0.0), skip_cache=True))
        expected = [alone(engine, each) for each in asked]
        heard = [Heard() for _ in asked]
        for each, listener in zip(asked, heard, strict=True):
            batch.submit(each, listener)
        assert [listener.answer() for listener in heard] == expected


# Each example boosts a model of its own, so shrinking one would take minutes.
@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.lists(
        st.tuples(
            st.integers(1, 120), st.integers(1, 25), st.integers(1, 30), st.sampled_from([0.0, 1.2]), st.booleans()
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 5),
    st.integers(1, 64),
)
def test_any_mixture_of_rows_is_answered_as_each_alone(
    mixture: list[tuple[int, int, int, float, bool]], max_batch: int, prefill_tokens: int
) -> None:
    """Each row has a length, a number of tokens, a token at which its caller goes, a temperature, and a wait."""
    with batch_of(max_batch=max_batch, prefill_tokens=prefill_tokens) as (engine, batch):
        asked = [
            request(ids(length, i), tokens, Sampling(temperature=heat, seed=i), skip_cache=True)
            for i, (length, tokens, _, heat, _) in enumerate(mixture)
        ]
        expected = [alone(engine, each) for each in asked]
        heard = []
        for each, (*_, leaves_at, _, waits) in zip(asked, mixture, strict=True):
            listener = Heard()
            listener._on_each = partial(_leave_at, listener, leaves_at)
            batch.submit(each, listener)
            heard.append(listener)
            if waits:
                assert listener.begun.wait(60)
        batch.run(lambda: None)  # after all of them
        for listener, answer, (_, tokens, leaves_at, _, _) in zip(heard, expected, mixture, strict=True):
            assert listener.tokens == answer[:leaves_at]
            assert listener.over.is_set() == (leaves_at >= tokens)
        assert batch.state().running == batch.state().waiting == 0


def _leave_at(listener: Heard, at: int, count: int) -> bool:
    listener.left = count >= at
    return False


def test_short_prompts_share_the_time_between_two_steps() -> None:
    with batch_of(prefill_tokens=192) as (engine, batch):
        passes: list[tuple[int, ...]] = []  # shapes of the input ids
        engine.model.register_forward_pre_hook(
            lambda module, args, kwargs: passes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        )
        going_on, started = threading.Event(), threading.Event()

        def wait(count: int) -> None:
            started.set()
            going_on.wait(60)

        first = ask(batch, ids(9, 1), 40, skip_cache=True, heard=Heard(wait))
        assert started.wait(60)
        others = [ask(batch, ids(10 + i, i), 3, skip_cache=True) for i in range(5)]
        going_on.set()
        for listener in (first, *others):
            listener.answer()
        short = [i for i, shape in enumerate(passes) if shape in [(1, 10 + i) for i in range(5)]]
        assert [b - a for a, b in pairwise(short)] == [
            1,
            2,
            1,
            1,
        ]  # each counts as 64: two after the first one, a step, three
