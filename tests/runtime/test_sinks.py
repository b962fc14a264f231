"""The first tokens of a sequence are not lent where a model makes a sink of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from kvboost.policy import ReusePolicy
from kvboost.runtime.model.demo_model import demo_model_dir
from kvboost.runtime.model.support import examine
from kvboost.runtime.plan.planner import build_plan
from kvboost.runtime.prepare.sink import SINK_TOKENS, sink_tokens
from kvboost.runtime.prepare.startup_check import find_sinks
from kvboost.types import Donor, Match, Span, Tier
from tests.tiny_models import tiny_model

TOKENS = tuple(range(100, 160))


def match(target: Span, start: int, tier: Tier = Tier.EXACT) -> Match:
    ids = TOKENS[target.start : target.end]
    return Match(target, Donor(7, ids, start, b"", b"", True), Span(0, len(ids)), tier)


def reused(matches: list[Match], sinks: int) -> list[Span]:
    policy = ReusePolicy(min_span=1)
    plan = build_plan(TOKENS, matches, [], policy, frozenset(Tier), str, sink_tokens=sinks)
    return [piece.target for piece in plan.reuse]


def test_a_donors_first_tokens_are_computed_elsewhere() -> None:
    assert reused([match(Span(20, 40), 0)], 4) == [Span(24, 40)]
    assert reused([match(Span(20, 40), 2)], 4) == [Span(22, 40)]
    assert reused([match(Span(20, 40), 4)], 4) == [Span(20, 40)]
    assert reused([match(Span(20, 40), 0)], 0) == [Span(20, 40)]


def test_the_prompts_first_tokens_are_not_taken_from_elsewhere() -> None:
    assert reused([match(Span(0, 20), 30)], 4) == [Span(4, 20)]
    assert reused([match(Span(0, 3), 30)], 4) == []


def test_a_lossless_prefix_keeps_its_sink() -> None:
    assert reused([match(Span(0, 20), 0, Tier.PREFIX)], 4) == [Span(0, 20)]


@pytest.mark.real_model
def test_the_demo_model_makes_a_sink_and_random_models_do_not() -> None:
    demo = AutoModelForCausalLM.from_pretrained(demo_model_dir()).eval()
    assert find_sinks(demo, examine(demo)) == SINK_TOKENS
    for arch in ("llama", "qwen2", "phi"):
        assert find_sinks(tiny_model(arch), examine(tiny_model(arch))) == 0


@given(st.integers(0, 59), st.integers(1, 30), st.integers(0, 40), st.integers(0, 9))
def test_nothing_within_the_sinks_is_ever_lent(at: int, length: int, start: int, sinks: int) -> None:
    target = Span(at, min(at + length, len(TOKENS)))
    for span in reused([match(target, start)], sinks):
        assert span.start >= sinks
        assert start + span.start - at >= sinks


@pytest.mark.parametrize(("first", "wanted"), [(1.0, 0), (2.5, 0), (3.5, SINK_TOKENS), (10.0, SINK_TOKENS)])
def test_a_sink_is_told_by_what_the_first_token_receives(first: float, wanted: int) -> None:
    length = 96
    even = torch.tensor([sum(1.0 / (query + 1) for query in range(key, length)) for key in range(length)])
    even[0] *= first
    assert sink_tokens(even) == wanted
