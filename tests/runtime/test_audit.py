"""The audit on real requests: it compares with what the request saw, off the critical path, and its findings act."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kvboost.api import engine_of, unboost
from kvboost.checksum import checksum
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.runtime.audit import audit
from kvboost.runtime.audit.log import HISTORY, AuditLog, AuditRecord, figures
from kvboost.runtime.audit.shadow import ANSWER_TOKENS, Difference, Seen, Watch, difference_of
from kvboost.runtime.control.controller import Controller
from kvboost.runtime.control.effective_policy import STEPS
from kvboost.types import ChunkKV, Tier
from tests.boosting import GREEDY, boosted, document, prompt, reused, settle, step_logits, warm
from tests.fakes import NgramEmbedder
from tests.tiny_models import tiny_model

DOCUMENTS = [document(seed) for seed in range(4)]
ALWAYS = ReusePolicy(audit_rate=1.0, tiers=(Tier.PREFIX, Tier.EXACT), recompute_ratio=0.3)


class PoisonedCache(LocalCache):
    """Lends noise instead of K/V, under checksums that fit: only an audit can tell."""

    def __init__(self) -> None:
        super().__init__(64 << 20, NgramEmbedder())

    def fetch(self, namespace: str, chunk_ids: Sequence[int]) -> Iterator[ChunkKV]:
        draw = np.random.default_rng(0)
        for kv in super().fetch(namespace, chunk_ids):
            count = memoryview(kv.payload).nbytes // 4
            payload = (3.0 * draw.standard_normal(count)).astype(np.float32).tobytes()
            yield ChunkKV(kv.chunk_id, payload, checksum(payload))


def orders(count: int) -> list[Tensor]:
    """Return prompts over the same documents, each beginning with a document of its own: exact reuse only."""
    rng = random.Random(0)
    return [prompt(document(1000 + i), *rng.sample(DOCUMENTS, 3)) for i in range(count)]


def audited(model: Any, ids: Tensor, **settings: Any) -> AuditRecord:
    """Run one request and return its audit."""
    engine = engine_of(model)
    before = len(engine.audit.log.records())
    model.generate(ids, **{**GREEDY, **settings})
    engine.audit.flush()
    records = engine.audit.log.records()
    assert len(records) == before + 1
    return records[-1]


@torch.no_grad()
def full_logits(model: Any, ids: Tensor, answer: Tensor) -> Tensor:
    """Return full prefill's logits along an answer, ``[A, vocab]``."""
    whole = torch.cat([ids, answer[None, :-1]], dim=1)
    return model(input_ids=whole, use_cache=False).logits[0, ids.shape[1] - 1 :].float()


def kl(full: Tensor, reuse: Tensor) -> float:
    p = full.double().softmax(-1)
    return float((p * (p.log() - reuse.double().softmax(-1).log())).sum())


@contextmanager
def stalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Keep every shadow from going on; yield "one has begun" and "go on"."""
    begun, go_on, real = threading.Event(), threading.Event(), audit.difference_of

    def difference_of(*args: Any) -> Difference:
        begun.set()
        assert go_on.wait(30.0)
        return real(*args)

    monkeypatch.setattr(audit, "difference_of", difference_of)
    try:
        yield begun, go_on
    finally:
        go_on.set()


# ---------------------------------------------------------------------------------------------- what it sees


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "phi"])
def test_it_compares_full_prefill_with_what_the_request_saw(arch: str, sampled: bool) -> None:
    with boosted(arch, policy=ALWAYS) as model:
        warm(model, prompt(*DOCUMENTS))
        (ids,) = orders(1)
        torch.manual_seed(1)
        sequences, logits = step_logits(model, ids, **({"do_sample": True, "temperature": 2.0} if sampled else {}))
        engine = settle(model)
        engine.audit.flush()
        assert reused(model, Tier.EXACT) > 0
        record = engine.audit.log.records()[-1]
        full = full_logits(model, ids, sequences[0, ids.shape[1] :])
        same = full.argmax(-1) == logits.argmax(-1)
        assert record.difference.kl_first == pytest.approx(kl(full[0], logits[0]), rel=1e-3, abs=1e-6)
        assert record.difference.kl_first > 1e-4  # the loss is there to be seen
        assert record.difference.top1_first == bool(same[0])
        assert record.difference.answer_tokens == len(logits)
        assert record.difference.top1_agreement == pytest.approx(float(same.float().mean()))
        apart = torch.nonzero(~same)
        assert record.difference.first_divergence == (int(apart[0]) if len(apart) else None)
        assert record.tokens_by_tier == model.last_reuse.tokens_by_tier
        assert record.recompute_ratio == model.last_reuse.recompute_ratio
        assert record.namespace == engine.preparer.namespace.key
        assert (record.tier, record.mix) == (Tier.EXACT, "exact")


def test_a_watch_takes_down_the_last_position_of_each_pass() -> None:
    watch = Watch()
    passes = [torch.randn(2, count, 9, generator=torch.Generator().manual_seed(count)) for count in (5, 1)]
    for logits in passes:
        watch.see(logits)
    seen = Seen.of(watch, 1, [7, 7, 7, 3, 4, 5], prompt_tokens=3)
    assert (seen.token_ids, seen.answer_ids) == ((7, 7, 7), (3, 4))
    assert torch.equal(seen.first, passes[0][1, -1])
    assert seen.tops.tolist() == [int(logits[1, -1].argmax()) for logits in passes]


def test_lossless_requests_and_misses_are_not_audited() -> None:
    with boosted(policy=ALWAYS) as model:
        ids = prompt(*DOCUMENTS)
        warm(model, ids, ids)
        assert reused(model, Tier.PREFIX) > 0
        engine_of(model).audit.flush()
        assert "audits" not in engine_of(model).counters.snapshot()


def test_a_mixed_request_is_answered_for_by_its_loosest_tier() -> None:
    policy = ReusePolicy(audit_rate=1.0, threshold=0.3)
    with boosted(policy=policy) as model:
        # Enough common words for the text to read as English, where another wording is no fact.
        long = [document(seed, sentences=4).replace("together", "with them and it together") for seed in range(3)]
        warm(model, prompt(*long))
        edited = long[1].replace(" together.", " apart.", 1)
        record = audited(model, prompt(document(1001), long[2], edited, long[0]))
        assert reused(model, Tier.SIMILAR) > 0
        assert reused(model, Tier.EXACT) > 0
        assert (record.tier, record.mix) == (Tier.SIMILAR, "exact+similar")
        counts = engine_of(model).counters.snapshot()
        assert counts["audits_similar"] == counts["audits"] == 1
        assert "audits_exact" not in counts


def test_rows_of_a_batch_are_audited_each_on_its_own() -> None:
    first, second = orders(2)
    second = second[:, :-9]
    found = []
    for together in (False, True):
        with boosted(policy=ALWAYS) as model:
            warm(model, prompt(*DOCUMENTS))
            if together:
                rows = torch.cat(
                    [torch.nn.functional.pad(ids, (first.shape[1] - ids.shape[1], 0)) for ids in (first, second)]
                )
                model.generate(rows, attention_mask=(rows != 0).long(), **GREEDY)
            else:
                for ids in (first, second):
                    model.generate(ids, **GREEDY)
                    engine_of(model).audit.flush()
            engine_of(model).audit.flush()
            found.append([record.difference for record in engine_of(model).audit.log.records()])
    alone, together = found
    for a, b in zip(alone, together, strict=True):
        assert a.kl_first == pytest.approx(b.kl_first, rel=1e-2, abs=1e-5)
        assert a.answer_tokens == b.answer_tokens == GREEDY["max_new_tokens"]


def test_beams_are_judged_by_the_first_token_alone() -> None:
    with boosted(policy=ALWAYS) as model:
        warm(model, prompt(*DOCUMENTS))
        difference = audited(model, orders(1)[0], num_beams=2).difference
        assert (difference.answer_tokens, difference.top1_agreement, difference.first_divergence) == (0, None, None)
        assert 0.0 < difference.kl_first < float("inf")


def test_long_answers_are_compared_up_to_a_limit() -> None:
    with boosted(policy=ALWAYS) as model:
        warm(model, prompt(*DOCUMENTS))
        record = audited(model, orders(1)[0], max_new_tokens=ANSWER_TOKENS + 9, eos_token_id=-1)
        assert record.difference.answer_tokens == ANSWER_TOKENS


# -------------------------------------------------------------------------------------------------- the draw


def drawn(seed: int, rate: float, requests: int = 12) -> list[int]:
    with boosted(policy=replace(ALWAYS, audit_rate=rate)) as model:
        engine = engine_of(model)
        engine.audit._draw.seed(seed)
        warm(model, prompt(*DOCUMENTS))
        counts = []
        for ids in orders(requests):
            model.generate(ids, do_sample=False, max_new_tokens=1)
            engine.audit.flush()
            counts.append(engine.counters.snapshot().get("audits", 0))
    return counts


def test_the_draw_is_repeatable_and_follows_the_rate() -> None:
    assert drawn(0, 0.5) == drawn(0, 0.5)
    assert 0 < drawn(0, 0.5)[-1] < 12
    assert drawn(0, 1.0)[-1] == 12
    assert drawn(0, 0.0)[-1] == 0


# -------------------------------------------------------------------------------------- off the critical path


def test_requests_do_not_wait_for_audits_and_skip_them_when_they_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with boosted(policy=ALWAYS) as model:
        warm(model, prompt(*DOCUMENTS))
        engine = engine_of(model)
        with stalled(monkeypatch) as (begun, go_on):
            for ids in orders(5):
                model.generate(ids, **GREEDY)  # returns although no audit can end
            assert begun.wait(30.0)
            counts = engine.counters.snapshot()
            assert "audits" not in counts
            assert counts["audit_skipped"] == 5 - audit.MAX_WAITING
            go_on.set()
            engine.audit.flush()
            assert engine.counters.snapshot()["audits"] == audit.MAX_WAITING


def test_closing_waits_for_the_running_audit_and_drops_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with boosted(policy=ALWAYS) as model:
        warm(model, prompt(*DOCUMENTS))
        engine = engine_of(model)
        with stalled(monkeypatch) as (begun, go_on):
            for ids in orders(2):
                model.generate(ids, **GREEDY)
            assert begun.wait(30.0)
            closing = threading.Thread(target=unboost, args=(model,))
            closing.start()
            closing.join(0.2)
            assert closing.is_alive()
            go_on.set()
            closing.join(30.0)
            assert not closing.is_alive()
        assert engine.counters.snapshot()["audits"] == 1


def test_a_shadow_that_fails_is_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def difference_of(*args: Any) -> Difference:
        raise RuntimeError("out of memory while reading 'the secret prompt'")

    monkeypatch.setattr(audit, "difference_of", difference_of)
    with boosted(policy=ALWAYS) as model, caplog.at_level(logging.WARNING, "kvboost"):
        warm(model, prompt(*DOCUMENTS))
        model.generate(orders(1)[0], **GREEDY)
        engine = engine_of(model)
        engine.audit.flush()
        assert engine.counters.snapshot()["audit_failures"] == 1
        assert engine.audit.summary()["failures"] == 1
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


def test_a_changed_model_is_not_audited() -> None:
    with boosted(policy=ALWAYS) as model:
        warm(model, prompt(*DOCUMENTS))
        engine = engine_of(model)
        engine.audit._unchanged = lambda namespace: False
        model.generate(orders(1)[0], **GREEDY)
        engine.audit.flush()
        assert engine.counters.snapshot()["audit_skipped"] == 1
        assert "audits" not in engine.counters.snapshot()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_shadows_and_requests_at_the_same_time_do_not_disturb_each_other(attention: str) -> None:
    """Shadows run while requests switch the model to recorded attention and widen its first pass."""
    model = tiny_model("llama", attn_implementation=attention)
    with boosted(policy=replace(ALWAYS, audit_rate=0.0, continuing=False), model=model):
        warm(model, prompt(*DOCUMENTS), *orders(4))
        alone = [step_logits(model, ids) for ids in orders(4)]
        assert reused(model, Tier.EXACT) > 0
        assert model.last_reuse.recomputed_tokens > 0
        settle(model)
        ids, logits = orders(1)[0], alone[0][1]
        seen = Seen(
            tuple(ids[0].tolist()), tuple(alone[0][0][0, ids.shape[1] :].tolist()), logits[0], logits.argmax(-1)
        )
        expected = difference_of(model, seen)
        shadows: list[Difference] = []
        stop = threading.Event()

        def run_shadows() -> None:
            while not stop.is_set():
                shadows.append(difference_of(model, seen))

        thread = threading.Thread(target=run_shadows)
        thread.start()
        try:
            for _ in range(3):
                for (sequence, logits), ids in zip(alone, orders(4), strict=True):
                    again, crowded = step_logits(model, ids)
                    assert torch.equal(again, sequence)
                    torch.testing.assert_close(crowded, logits, rtol=1e-4, atol=1e-4)
        finally:
            stop.set()
            thread.join()
    assert len(shadows) > 3
    assert expected.kl_first > 1e-4
    for found in shadows:
        assert found.kl_first == pytest.approx(expected.kl_first, rel=1e-3)
        assert replace(found, kl_first=0.0) == replace(expected, kl_first=0.0)


# ------------------------------------------------------------------------------------------ findings that act


def test_a_planted_bad_donor_is_caught_and_its_tier_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    policy = replace(ALWAYS, tiers=(Tier.EXACT,))  # the noise would stand in the prefix tier as well
    with boosted(cache=PoisonedCache(), policy=policy) as model, caplog.at_level(logging.WARNING, "kvboost"):
        warm(model, prompt(*DOCUMENTS))
        engine = engine_of(model)
        prompts = orders(2 * (STEPS + 1) + 1)
        ratios = []
        for ids in prompts[:-1]:
            assert audited(model, ids).violation
            ratios.append(model.last_reuse.recompute_ratio)
        # Two audits at each step of the ladder; whole tokens are recomputed, so ratios fit roughly.
        step = (ALWAYS.max_recompute_ratio - ALWAYS.recompute_ratio) / STEPS
        wanted = [ALWAYS.recompute_ratio + i // 2 * step for i in range(len(ratios))]
        assert ratios == pytest.approx(wanted, abs=0.02)
        after = model.generate(prompts[-1], **GREEDY)
        assert reused(model, Tier.EXACT) == 0
        assert [r for r in model.last_reuse.declined if r.startswith("tier 'exact' switched off by the audit: ")]
        assert torch.equal(after, type(model).generate(model, prompts[-1], **GREEDY))
        summary = engine.audit.summary()
    assert summary["tiers_off"] == ["exact"]
    assert summary["violations"] == summary["audits"] == 2 * (STEPS + 1)
    assert summary["tiers"]["exact"]["retry_in_requests"] > 900
    assert [r.levelname for r in caplog.records if "switched off" in r.getMessage()] == ["WARNING"]


def test_an_infinite_loss_is_in_no_mean_and_the_summary_stays_json() -> None:
    with boosted(policy=ALWAYS) as model:
        warm(model, prompt(*DOCUMENTS))
        record = audited(model, orders(1)[0])
        log = engine_of(model).audit.log
        log.add(replace(record, difference=replace(record.difference, kl_first=float("inf"))))
        summary = engine_of(model).audit.summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["mean_kl"] == pytest.approx(record.difference.kl_first)


def test_a_workload_within_the_bound_is_left_alone() -> None:
    policy = replace(ALWAYS, max_kl=20.0, recompute_ratio=0.5)  # enough for the pass over the question
    with boosted(policy=policy) as model:
        warm(model, prompt(*DOCUMENTS))
        for ids in orders(15):
            assert not audited(model, ids, max_new_tokens=1).violation
            assert model.last_reuse.declined == ()
        status = engine_of(model).audit.controller.status()[Tier.EXACT]
        assert (status.level, status.audits, status.violations) == (0, 15, 0)


def test_a_policy_of_the_calls_own_is_audited_but_does_not_steer() -> None:
    with boosted(cache=PoisonedCache(), policy=replace(ALWAYS, audit_rate=0.0)) as model:
        warm(model, prompt(*DOCUMENTS))
        for ids in orders(6):
            record = audited(model, ids, policy=replace(ALWAYS, recompute_ratio=0.0), max_new_tokens=1)
            assert record.violation
            assert not record.steers
        status = engine_of(model).audit.controller.status()[Tier.EXACT]
        assert (status.level, status.audits) == (0, 0)


def test_a_tier_on_probation_is_audited_at_every_request() -> None:
    with boosted(cache=PoisonedCache(), policy=replace(ALWAYS, audit_rate=1e-9)) as model:
        warm(model, prompt(*DOCUMENTS))
        engine = engine_of(model)
        engine.audit.controller = Controller(engine.preparer.policy, cool_down_requests=1)
        for _ in range(2 * (STEPS + 1)):
            rules = engine.audit.controller.admit(engine.preparer.policy).rules
            engine.audit.controller.observe(Tier.EXACT, rules[Tier.EXACT].epoch, True)
        assert engine.audit.controller.status()[Tier.EXACT].off
        for ids in orders(2):
            assert audited(model, ids, max_new_tokens=1).steers
        assert engine.audit.controller.status()[Tier.EXACT].off


# --------------------------------------------------------------------------------------------------- the log


def record_of(tier: Tier, loss: float) -> AuditRecord:
    difference = Difference(loss, True, 0.5, 1, 2)
    return AuditRecord("n", tier, {tier: 3}, 0.1, difference, loss > 0.1, True, 0.0)


def test_the_log_is_bounded_for_each_tier() -> None:
    log = AuditLog("n")
    log.add(record_of(Tier.SIMILAR, 0.5))
    for i in range(HISTORY + 5):
        log.add(record_of(Tier.EXACT, i / 10_000))
    assert len(log.records(Tier.EXACT)) == HISTORY
    assert log.records(Tier.EXACT)[0].difference.kl_first == 5 / 10_000
    assert len(log.records(Tier.SIMILAR)) == 1
    assert log.by_mix()["similar"]["mean_kl"] == 0.5


def test_figures_leave_infinite_losses_out_of_the_mean_only() -> None:
    found = figures([record_of(Tier.EXACT, loss) for loss in (0.1, 0.3, float("inf"))])
    assert found["mean_kl"] == pytest.approx(0.2)
    assert found["violations"] == 2
    assert found["records"] == found["diverged"] == 3
    assert figures([])["mean_kl"] is None
