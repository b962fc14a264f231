"""Faults planted at known places: each strategy must find those it is made for, and the answer must be whole again."""

import math

import pytest
import torch

from kvboost.runtime.repair import DeviationRepair, HeadRepair, NoRepair, QueryRepair, RandomRepair
from kvboost.types import Tier
from tests.runtime.repair.scenes import Scene, scene
from tests.tiny_models import random_ids, tiny_model

# A run behind the start, a lossless one and a gap in between: gathered rows are not the positions they stand at.
PIECES = [(0, 32, Tier.PREFIX), (32, 64, Tier.EXACT), (72, 96, Tier.PREFIX), (96, 128, Tier.EXACT)]
MARKER, NEEDLE = 5, 6


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama")


@pytest.fixture(scope="module")
def seeker():
    """Return a model in which the marker token, in every layer, looks for the needle token and nothing else.

    The embedding has a dimension of its own for each of both, nothing writes to these two, and the only
    weights of queries and keys lead from them to a rotary pair that hardly turns.
    """
    model = tiny_model("llama")
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding[:, :2] = 0.0
        embedding[MARKER, 0] = embedding[NEEDLE, 1] = 4.0
        for layer in model.model.layers:
            layer.input_layernorm.weight.fill_(1.0)
            layer.self_attn.o_proj.weight[:2] = 0.0
            layer.mlp.down_proj.weight[:2] = 0.0
            for projection, source in ((layer.self_attn.q_proj, 0), (layer.self_attn.k_proj, 1)):
                projection.weight.zero_()
                projection.weight[7::16, source] = 3.0
    return model


def test_deviation_finds_exactly_the_corrupted_tokens(llama):
    planted = [33, 50, 63, 97, 127]
    for keys, values in ((True, True), (True, False), (False, True)):
        there = _scene(llama)
        there.corrupt(planted, keys, values, from_layer=1)
        selection = there.select(DeviationRepair, budget_tokens=_deviation_pass() + len(planted))
        assert selection.positions.tolist() == planted
        assert there.error_after(selection) < 1e-4


def test_deviation_of_true_kv_is_nothing_but_rounding(llama):
    there = _scene(llama)
    planted = [64 + 35]
    there.corrupt(planted, from_layer=1)
    there.cache.key_slab[1, 0, :, 40] += 1e-3  # far above what a wrong mask would have to stay below
    selection = there.select(DeviationRepair, budget_tokens=_deviation_pass() + 2)
    assert selection.positions.tolist() == [40, 99]


@pytest.mark.parametrize(("arch", "attention"), [("gemma2", "eager"), ("gemma3", "sdpa"), ("gemma3", "eager")])
def test_deviation_on_other_attention_and_layers(arch, attention):
    model = tiny_model(arch, attn_implementation=attention)
    there = _scene(model)
    there.corrupt([40, 110], from_layer=1)
    pass_tokens = 72 * 2 / 4
    selection = there.select(DeviationRepair, budget_tokens=pass_tokens + 2)
    assert selection.positions.tolist() == [40, 110]


def test_deviation_leaves_the_slab_alone(llama):
    there = _scene(llama)
    before = there.cache.key_slab.clone(), there.cache.value_slab.clone()
    there.select(DeviationRepair, budget_tokens=128)
    assert torch.equal(there.cache.key_slab, before[0])
    assert torch.equal(there.cache.value_slab, before[1])


def test_deviation_needs_a_second_layer():
    there = _scene(tiny_model("llama", num_hidden_layers=1))
    selection = there.select(DeviationRepair, budget_tokens=128)
    assert len(selection.positions) == 0
    assert "one layer" in selection.declined


@pytest.fixture
def any_share(monkeypatch):
    """Let the question's pass take almost all of a budget that pays for the planted tokens and no others.

    It runs through all layers, so that its cost is a whole number of tokens.
    """
    monkeypatch.setattr("kvboost.runtime.repair.query.MAX_PASS_SHARE", 1.0)
    monkeypatch.setattr("kvboost.runtime.repair.query.PASS_DEPTH", 1.0)


def test_query_finds_the_tokens_that_the_question_asks_for(seeker, any_share):
    needles = [37, 58, 100, 111]
    ids = random_ids(160, seed=3)[0].clamp_min(NEEDLE + 1)
    ids[[*needles, 66, 80]] = NEEDLE  # two more where nothing has to be chosen: a gap and a lossless run
    ids[[140, 150, 159]] = MARKER
    there = scene(seeker, ids, PIECES)
    there.corrupt(needles, keys=False)
    selection = there.select(QueryRepair, budget_tokens=32 + len(needles))
    assert selection.positions.tolist() == needles
    assert selection.pass_tokens == 32
    assert there.error_after(selection) < 1e-4


def test_query_repairs_a_question_that_was_reused_itself(seeker, any_share):
    ids = random_ids(136, seed=4)[0].clamp_min(NEEDLE + 1)
    ids[[37, 100]] = NEEDLE
    ids[[130, 135]] = MARKER
    there = scene(seeker, ids, PIECES)
    there.corrupt([37, 100, *range(120, 128)], keys=False)
    selection = there.select(QueryRepair, budget_tokens=16 + 8 + 2)
    assert selection.positions.tolist() == [37, 100, *range(120, 128)]
    assert there.error_after(selection) < 1e-4


def test_head_repairs_corrupted_run_heads(llama):
    planted = [*range(32, 36), *range(96, 100)]
    there = _scene(llama)
    there.corrupt(planted)
    selection = there.select(HeadRepair, budget_tokens=64, head_tokens=4)
    assert selection.positions.tolist() == planted
    assert selection.pass_tokens == 0
    assert there.error_after(selection) < 1e-4


def test_head_shrinks_to_the_budget(llama):
    there = _scene(llama)
    assert there.select(HeadRepair, budget_tokens=7).positions.tolist() == [32, 33, 34, 96, 97, 98]
    selection = there.select(HeadRepair, budget_tokens=1)
    assert len(selection.positions) == 0
    assert "2 runs" in selection.declined


def test_head_spares_only_the_run_that_never_lacked_a_history(llama):
    ids = random_ids(96)[0]
    moved = scene(llama, ids, [(0, 32, Tier.EXACT), (32, 64, Tier.EXACT)])
    assert moved.select(HeadRepair, 64, head_tokens=1).positions.tolist() == [0, 32]
    at_start = moved.plan.reuse[0]
    donor = at_start.donor.__class__(9, at_start.donor.token_ids, 0, b"", b"x", exact=True)
    plan = moved.plan.__class__(96, (at_start.__class__(at_start.target, donor, 0, Tier.EXACT), moved.plan.reuse[1]))
    still = Scene(llama, ids, plan, moved.cache, moved.full_logits)
    assert still.select(HeadRepair, 64, head_tokens=1).positions.tolist() == [32]


@pytest.mark.parametrize("strategy", [NoRepair, RandomRepair, HeadRepair])
def test_other_strategies_miss_the_planted_tokens(llama, strategy):
    planted = [50, 63, 113, 127]
    there = _scene(llama)
    there.corrupt(planted, from_layer=1)
    selection = there.select(strategy, budget_tokens=len(planted), head_tokens=2)
    assert there.error_after(selection) > 1e-2


def _scene(model):
    return scene(model, random_ids(160)[0], PIECES)


def _deviation_pass():
    """Tokens that the pass of three layers costs: two runs of 32 and a gap of 8, through two of them."""
    return 72 * 2 / 3


def test_half_of_the_layers_find_what_the_question_asks_for(seeker, monkeypatch):
    monkeypatch.setattr("kvboost.runtime.repair.query.MAX_PASS_SHARE", 0.5)
    needles = [37, 58, 100, 111]
    ids = random_ids(160, seed=3)[0].clamp_min(NEEDLE + 1)
    ids[needles] = NEEDLE
    ids[[140, 150, 159]] = MARKER
    there = scene(seeker, ids, PIECES)
    there.corrupt(needles, keys=False)
    selection = there.select(QueryRepair, budget_tokens=2 * 32)
    layers = len(there.cache.layers)
    assert selection.pass_tokens == 32 * math.ceil(layers / 2) / layers
    assert set(needles) <= set(selection.positions.tolist())
