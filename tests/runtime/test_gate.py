"""The start-up gate: it passes what is right, fails what is not, and remembers."""

import json

import pytest
import torch

from kvboost.runtime.attention.masks import position_masks
from kvboost.runtime.kv.slab import SlabLayer
from kvboost.runtime.model.fingerprint import namespace_of
from kvboost.runtime.model.rope import Pairing, Rope
from kvboost.runtime.model.support import APPROXIMATE, ModelSupport, examine
from kvboost.runtime.prepare import startup_check as gate
from kvboost.runtime.prepare.startup_check import pass_startup_check, run_gate
from kvboost.types import Tier
from tests.boosting import tokenizer
from tests.tiny_models import ROPE_SCALING, SLIDING, SUPPORTED, TRAPS, tiny_model

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = [str(d).removeprefix("torch.") for d in DTYPES]


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("arch", [*SUPPORTED, *SLIDING, *(a for a in TRAPS if a != "deepseek_v3")])
def test_supported_models_pass(arch, dtype):
    model = tiny_model(arch, dtype)
    assert run_gate(model, examine(model)) == ""


@pytest.mark.parametrize("arch", ["llama", "gemma2", "gemma3", "phi", "mistral"])
def test_supported_models_pass_with_eager_attention(arch):
    model = tiny_model(arch, attn_implementation="eager")
    assert model.config._attn_implementation == "eager"
    assert run_gate(model, examine(model)) == ""


@pytest.mark.parametrize("scaling", [s for s in ROPE_SCALING if s not in ("dynamic", "longrope")])
def test_scaled_rope_passes(scaling):
    model = tiny_model("llama", rope=scaling)
    assert run_gate(model, examine(model)) == ""


def test_layers_with_a_sliding_window_and_no_layer_types_pass():
    model = tiny_model("mistral", sliding_window=32)
    assert run_gate(model, examine(model)) == ""


def with_ropes(support, change):
    return ModelSupport(support.layout, tuple(change(r) for r in support.ropes), support.tiers)


def test_fails_on_tokens_that_see_the_future(monkeypatch):
    def blind(model, positions, length, filled=None):
        return position_masks(model, torch.full_like(positions, length), length, filled)

    monkeypatch.setattr(gate, "position_masks", blind)
    model = tiny_model("llama")
    assert "recompute-everything" in run_gate(model, examine(model))


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize(
    "change",
    [
        lambda r: Rope(tuple(f**1.05 for f in r.inv_freq), r.pairing),
        lambda r: Rope(r.inv_freq, Pairing.INTERLEAVED),
        lambda r: None,
    ],
    ids=["base", "pairing", "not rotated"],
)
def test_fails_on_a_wrong_rotation(change, dtype):
    model = tiny_model("llama", dtype)
    assert "re-rotated" in run_gate(model, with_ropes(examine(model), change))


def test_fails_when_the_cache_writes_to_the_wrong_place(monkeypatch):
    original = SlabLayer._splice

    def shifted(self, splice, keys, values):
        return original(self, splice, keys.roll(1, -2), values)

    monkeypatch.setattr(SlabLayer, "_splice", shifted)
    model = tiny_model("llama")
    assert run_gate(model, examine(model)) != ""


def test_fails_when_reused_tokens_are_not_seen(monkeypatch):
    def narrow(model, positions, length, filled=None):
        own = torch.zeros(length, dtype=torch.bool)
        own[positions] = True
        return position_masks(model, positions, length, own)

    monkeypatch.setattr(gate, "position_masks", narrow)
    model = tiny_model("llama")
    assert "same-position reuse" in run_gate(model, examine(model))


def test_fails_on_logits_that_are_not_finite():
    model = tiny_model("llama")
    model.lm_head.weight.data[5] = float("nan")
    assert "not finite" in run_gate(model, examine(model))


def test_fails_when_attention_cannot_be_recorded(monkeypatch):
    monkeypatch.setattr("kvboost.runtime.attention.recording.AttentionRecorder.add", lambda self, *_: None)
    model = tiny_model("llama")
    assert "attention" in run_gate(model, examine(model))


@pytest.fixture
def opened():
    model = tiny_model("llama")
    support = examine(model)
    return model, support, namespace_of(model, tokenizer(), support)


def verdict_file(folder):
    (path,) = (folder / "gates").iterdir()
    return path


def test_a_model_that_fails_keeps_the_prefix_tier_and_is_told_why(opened, tmp_path, monkeypatch):
    model, support, namespace = opened
    monkeypatch.setattr(gate, "run_gate", lambda *args: "it leaks")
    reduced = pass_startup_check(model, support, namespace, tmp_path)
    assert reduced.tiers == {Tier.PREFIX}
    assert not reduced.tiers & APPROXIMATE
    assert reduced.reason == "it leaks"


@pytest.mark.parametrize("verdict", ["", "it leaks"])
def test_the_verdict_is_kept_for_the_next_start(opened, tmp_path, monkeypatch, verdict):
    monkeypatch.setattr(gate, "run_gate", lambda *args: verdict)
    first = pass_startup_check(*opened, tmp_path)

    def again(*args):
        raise AssertionError("the gate ran twice")

    monkeypatch.setattr(gate, "run_gate", again)
    assert pass_startup_check(*opened, tmp_path) == first


def test_another_attention_implementation_is_judged_anew(opened, tmp_path):
    model, support, namespace = opened
    pass_startup_check(model, support, namespace, tmp_path)
    model.config._attn_implementation = "eager"
    pass_startup_check(model, support, namespace, tmp_path)
    assert len(list((tmp_path / "gates").iterdir())) == 2


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '"reason"', "{}", "null", "17", '{"reason": null}', '{"reason": 5}', b"\xff\xfe\x00"],
)
def test_a_corrupt_verdict_is_ignored_and_written_again(opened, tmp_path, content):
    expected = pass_startup_check(*opened, tmp_path)
    path = verdict_file(tmp_path)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert pass_startup_check(*opened, tmp_path) == expected
    assert json.loads(path.read_text()) == {"refused": "", "reason": "", "sink_tokens": 0}


def test_a_folder_that_cannot_be_written_costs_only_the_check(opened, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert pass_startup_check(*opened, blocked).reason == ""


def test_a_model_without_approximate_tiers_is_checked_for_the_prefix_tier_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "run_gate", pytest.fail)
    model = tiny_model("gpt2")
    support = examine(model)
    checked = pass_startup_check(model, support, namespace_of(model, tokenizer(), support), tmp_path)
    assert checked == support
    assert checked.tiers == {Tier.PREFIX}
