"""Continuing is not borrowing: a chat over re-ordered documents goes on from what it was answered from."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvboost.api import engine_of
from kvboost.config import Config
from kvboost.policy import ReusePolicy
from kvboost.runtime.kv.continued import Continued
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.types import Donor, KVLayout, Span, Tier
from tests.boosting import GREEDY, boosted, document, prompt, tokenizer
from tests.runtime_service import runtime_service

POLICY = ReusePolicy(audit_rate=0.0, worth_it=False, recompute_ratio=0.3)
DOCUMENTS = [document(i) for i in range(5)]
OTHER_ORDER = [DOCUMENTS[i] for i in (3, 1, 4, 0, 2)]


def following(ids: Tensor, text: str = "And what did they find there later?") -> Tensor:
    """Return ``ids`` with another question behind them."""
    more = tokenizer()(f"\n\n{text}", add_special_tokens=False).input_ids
    return torch.cat([ids, torch.tensor([more])], 1)


def tiers(model: Any) -> dict[str, int]:
    return {str(tier): count for tier, count in model.last_reuse.tokens_by_tier.items() if count}


@pytest.mark.parametrize("arch", ["llama", "qwen2", "gemma3"])
def test_the_next_turn_goes_on_without_a_second_repair(arch: str) -> None:
    with boosted(arch, policy=POLICY) as model:
        model.generate(prompt(*DOCUMENTS), **GREEDY)
        first = model.generate(prompt(*OTHER_ORDER), **GREEDY)
        assert model.last_reuse.tokens_by_tier[Tier.EXACT] > 0
        assert model.last_reuse.recomputed_tokens > 0
        second = model.generate(following(first), **GREEDY)
        report = model.last_reuse
        assert report.recomputed_tokens == 0
        assert report.tokens_by_tier[Tier.CONTINUED] > 0
        assert report.reused_tokens == first.shape[1] - 1
        assert not report.lossless
        model.generate(following(second), **GREEDY)
        assert model.last_reuse.reused_tokens == second.shape[1] - 1
        assert model.last_reuse.recomputed_tokens == 0


def test_what_is_continued_is_what_was_answered_from() -> None:
    """Logits of the next turn are those of the first request's own cache, to rounding."""
    with boosted(policy=POLICY) as model:
        model.generate(prompt(*DOCUMENTS), **GREEDY)
        first = model.generate(prompt(*OTHER_ORDER), **GREEDY, return_dict_in_generate=True)
        own = copy.deepcopy(first.cache)
        ids = following(first.sequences)
        logits = model.generate(ids, **GREEDY, return_dict_in_generate=True, output_logits=True).logits[0]
        assert model.last_reuse.tokens_by_tier[Tier.CONTINUED] > 0
        had = own.get_seq_length()
        with torch.no_grad():
            expected = model(input_ids=ids[:, had:], cache=own, use_cache=True).logits[:, -1]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_the_same_request_has_one_answer() -> None:
    with boosted(policy=POLICY) as model:
        model.generate(prompt(*DOCUMENTS), **GREEDY)
        ids = prompt(*OTHER_ORDER)
        model.generate(ids, **GREEDY)
        answers = []
        for _ in range(3):
            answers.append(model.generate(ids, **GREEDY, return_dict_in_generate=True, output_logits=True))
            assert model.last_reuse.reused_tokens == ids.shape[1] - 1
            assert model.last_reuse.recomputed_tokens == 0
    for answer in answers[1:]:
        assert torch.equal(answer.sequences, answers[0].sequences)
        assert torch.equal(answer.logits[0], answers[0].logits[0])


def test_another_question_over_the_same_documents_borrows_as_ever() -> None:
    with boosted(policy=POLICY) as model:
        model.generate(prompt(*DOCUMENTS), **GREEDY)
        model.generate(prompt(*OTHER_ORDER), **GREEDY)
        model.generate(prompt(*OTHER_ORDER, question="Where did the children go in the evening?"), **GREEDY)
        assert model.last_reuse.tokens_by_tier[Tier.CONTINUED] == 0
        assert model.last_reuse.tokens_by_tier[Tier.EXACT] > 0


@pytest.mark.parametrize("change", [{"tiers": ("prefix",)}, {"continuing": False}])
def test_continuations_end_with_their_tier_and_with_the_policy(change: dict[str, Any]) -> None:
    with boosted(policy=POLICY) as model:
        model.generate(prompt(*DOCUMENTS), **GREEDY)
        first = model.generate(prompt(*OTHER_ORDER), **GREEDY)
        model.generate(following(first), **GREEDY, policy=replace(POLICY, **change))
        assert model.last_reuse.tokens_by_tier[Tier.CONTINUED] == 0


def test_nothing_is_kept_of_lossless_requests_or_beyond_the_bound() -> None:
    with boosted(policy=POLICY) as model:
        first = model.generate(prompt(*DOCUMENTS), **GREEDY)
        model.generate(following(first), **GREEDY)
        engine_of(model).writer.flush()
        assert engine_of(model).preparer.continued.stored_bytes == 0
    config = Config()
    config = replace(config, cache=replace(config.cache, continued_max_bytes=1000))
    with boosted(policy=POLICY, config=config) as model:
        model.generate(prompt(*DOCUMENTS), **GREEDY)
        first = model.generate(prompt(*OTHER_ORDER), **GREEDY)
        model.generate(following(first), **GREEDY)
        assert model.last_reuse.tokens_by_tier[Tier.CONTINUED] == 0


def test_audits_see_continued_requests() -> None:
    with boosted(policy=replace(POLICY, audit_rate=1.0)) as model:
        model.generate(prompt(*DOCUMENTS), **GREEDY)
        first = model.generate(prompt(*OTHER_ORDER), **GREEDY)
        engine_of(model).audit.flush()
        before = engine_of(model).counters.snapshot().get("audits", 0)
        model.generate(following(first), **GREEDY)
        assert model.last_reuse.tokens_by_tier[Tier.CONTINUED] > 0
        engine_of(model).audit.flush()
        assert engine_of(model).counters.snapshot()["audits"] == before + 1


def test_rows_of_the_runtime_service_continue_too() -> None:
    with runtime_service(policy=POLICY) as running:
        ask = running.client.answer
        ask(prompt(*DOCUMENTS)[0].tolist(), max_new_tokens=4)
        ids = prompt(*OTHER_ORDER)[0].tolist()
        first = ask(ids, max_new_tokens=4)
        again = ask(ids, max_new_tokens=4)
        assert again.report.tokens_by_tier[Tier.CONTINUED] > 0
        turn = following(torch.tensor([[*ids, *first.token_ids]]))[0].tolist()
        second = ask(turn, max_new_tokens=4)
        assert second.report.recomputed_tokens == 0
        assert second.report.tokens_by_tier[Tier.CONTINUED] > 0


LAYOUT = KVLayout(1, 1, 1, 1, "float32")


def kv_of(ids: list[int], lineage: int) -> tuple[Tensor, Tensor]:
    """Return K/V that tell from which lineage each token is."""
    keys = (
        torch.tensor(
            [
                [
                    [
                        [
                            float(i),
                        ]
                        for i in ids
                    ]
                ]
            ]
        )
        + 1000.0 * lineage
    )
    return keys, keys + 0.5


def borrowed(num_tokens: int, held: Any = None) -> Plan:
    """Return a plan that borrows the tokens from 1 on, or goes on from ``held``."""
    donor = Donor(7, (0,) * num_tokens, 0, b"", b"", True)
    plan = Plan(num_tokens, (ReuseSpan(Span(1, num_tokens), donor, 1, Tier.EXACT),))
    return held.before(Plan(num_tokens, ())) if held is not None else plan


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=9), min_size=1, max_size=12), st.integers(60, 400))
def test_what_is_found_was_kept_of_one_line_and_the_bound_holds(requests: list[list[int]], max_bytes: int) -> None:
    """Each request goes on from what is found; K/V must be those that its line of turns was answered from."""
    continued = Continued(max_bytes, 3600.0)
    answered: list[list[float]] = []
    for lineage, ids in enumerate(requests, 1):
        held = continued.find("n", ids, [Tier.EXACT])
        keys, values = kv_of(ids, lineage)
        if held is not None:
            assert 0 < held.tokens < len(ids)
            slab = SlabCache(LAYOUT, len(ids))
            held.place(slab)
            found = slab.key_slab[0, 0, 0, : held.tokens, 0]
            assert any(found.tolist() == kv[: held.tokens] for kv in answered)
            keys[0, 0, : held.tokens, 0] = found
        answered.append(keys[0, 0, :, 0].tolist())
        continued.keep("n", ids, keys, values, borrowed(len(ids), held))
        assert continued.stored_bytes <= max_bytes
    assert continued.find("other", requests[-1], [Tier.EXACT]) is None
    assert continued.find("n", requests[-1], [Tier.PREFIX]) is None


def test_the_least_recently_used_sequence_goes_first() -> None:
    continued = Continued(3 * 4 * 8, 3600.0)  # three sequences of four tokens
    for start in (10, 20, 30):
        ids = [start, 1, 2, 3]
        continued.keep("n", ids, *kv_of(ids, 1), borrowed(4))
    assert continued.find("n", [10, 1, 2, 3, 4], [Tier.EXACT]) is not None
    ids = [40, 1, 2, 3]
    continued.keep("n", ids, *kv_of(ids, 1), borrowed(4))
    known = {start: continued.find("n", [start, 1, 2, 3, 4], [Tier.EXACT]) is not None for start in (10, 20, 30, 40)}
    assert known == {10: True, 20: False, 30: True, 40: True}


def test_what_is_not_used_is_forgotten_in_time() -> None:
    continued = Continued(1 << 20, 0.0)
    ids = [1, 2, 3, 4]
    continued.keep("n", ids, *kv_of(ids, 1), borrowed(4))
    assert continued.find("n", [*ids, 5], [Tier.EXACT]) is None
    assert continued.stored_bytes == 0


def test_what_is_cached_without_loss_goes_before_what_is_continued() -> None:
    with boosted(policy=POLICY) as model:
        model.generate(prompt(*DOCUMENTS), **GREEDY)
        ids = prompt(*OTHER_ORDER)
        model.generate(ids, **GREEDY)
        model.generate(ids, **GREEDY)
        assert model.last_reuse.tokens_by_tier[Tier.CONTINUED] > 0
        model.generate(ids, **GREEDY, policy=replace(POLICY, tiers=("prefix",)))  # computes it in full, and stores it
        model.generate(ids, **GREEDY)
        assert model.last_reuse.tokens_by_tier[Tier.CONTINUED] == 0
        assert model.last_reuse.lossless
