"""What holds for every strategy: the budget, what may be chosen, and what may be written to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.policy import REPAIRS
from kvboost.runtime.repair import STRATEGIES, RandomRepair
from kvboost.runtime.repair.query import prior
from kvboost.types import Tier
from tests.runtime.repair.scenes import scene
from tests.tiny_models import random_ids, tiny_model

MODEL = tiny_model("llama")


def test_the_policy_knows_every_strategy_by_name():
    assert tuple(STRATEGIES) == REPAIRS


@st.composite
def scenes(draw):
    """Return a prompt with up to five pieces of either tier, gaps between some of them, and a tail."""
    pieces, at = [], 0
    for _ in range(draw(st.integers(1, 5))):
        start = at + draw(st.sampled_from([0, 0, 5]))
        at = start + draw(st.integers(4, 32))
        pieces.append((start, at, draw(st.sampled_from([Tier.PREFIX, Tier.EXACT, Tier.EXACT]))))
    length = at + draw(st.integers(1, 40))
    return scene(MODEL, random_ids(length, seed=draw(st.integers(0, 5)))[0], pieces)


@pytest.mark.parametrize("name", REPAIRS)
@settings(max_examples=12, deadline=None)
@given(there=scenes(), share=st.floats(0.0, 2.0), question=st.integers(1, 64), heads=st.integers(1, 40))
def test_budget_and_choice(name, there, share, question, heads):
    plan = there.plan
    budget = share * plan.repairable_tokens
    before = there.cache.key_slab.clone()
    selection = there.select(STRATEGIES[name], budget, question, heads)
    chosen = selection.positions.tolist()

    assert selection.cost <= budget + 1e-9
    assert chosen == sorted(set(chosen))
    reused = {p for piece in plan.reuse for p in range(piece.target.start, piece.target.end)}
    approximate = {p for run in plan.runs if run.repairable for p in range(run.span.start, run.span.end)}
    assert set(chosen) <= approximate
    assert bool(selection.pass_tokens) <= bool(chosen)

    kept = sorted(reused - set(chosen))
    assert torch.equal(there.cache.key_slab[:, :, :, kept], before[:, :, :, kept])


@pytest.mark.parametrize("name", [name for name in REPAIRS if name != "none"])
def test_a_budget_that_reaches_is_spent(name, monkeypatch):
    monkeypatch.setattr("kvboost.runtime.repair.query.MAX_PASS_SHARE", 0.5)  # it has three layers and a short prompt
    budget = 280 if name == "query+deviation" else 160  # half of it has to pay for both passes
    there = scene(MODEL, random_ids(200)[0], [(0, 80, Tier.EXACT), (80, 168, Tier.EXACT)])
    selection = there.select(STRATEGIES[name], budget_tokens=budget, head_tokens=80)
    assert budget - 2 <= selection.cost <= budget
    assert selection.declined is None


@pytest.mark.parametrize("name", ["head", "deviation"])
def test_a_budget_that_does_not_reach_is_declined_by_name(name):
    there = scene(MODEL, random_ids(200)[0], [(0, 80, Tier.EXACT), (80, 168, Tier.EXACT)])
    selection = there.select(STRATEGIES[name], budget_tokens=1)
    assert len(selection.positions) == 0
    assert selection.pass_tokens == 0
    assert "budget" in selection.declined


def test_query_spends_a_small_budget_by_place_alone_without_a_pass():
    there = scene(MODEL, random_ids(200)[0], [(0, 80, Tier.EXACT), (80, 168, Tier.EXACT)])
    selection = there.select(STRATEGIES["query"], budget_tokens=6)
    weights = prior(there.plan, there.cache.key_slab.device)
    assert selection.positions.tolist() == sorted(weights[:168].topk(6).indices.tolist())
    assert selection.pass_tokens == 0
    assert "budget of 6" in selection.declined
    looked = there.select(STRATEGIES["query"], budget_tokens=176)
    assert looked.pass_tokens == pytest.approx(32 * 2 / 3)  # two of three layers
    assert (len(looked.positions), looked.declined) == (154, None)


def test_mixed_strategies_choose_nothing_twice():
    there = scene(MODEL, random_ids(200)[0], [(0, 80, Tier.EXACT), (80, 168, Tier.EXACT)])
    for name in ("head+query", "query+deviation"):
        positions = there.select(STRATEGIES[name], budget_tokens=1000).positions
        assert positions.tolist() == list(range(168))


def test_random_is_repeatable_and_depends_on_the_prompt():
    drawn = []
    for seed in (0, 0, 1):
        there = scene(MODEL, random_ids(200, seed=seed)[0], [(0, 168, Tier.EXACT)])
        drawn.append(there.select(RandomRepair, budget_tokens=20).positions.tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 20
