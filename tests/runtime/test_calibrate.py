"""Calibration: within its time, kept for the next start, and done again where the file is no good."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from kvboost.runtime.cost import calibrate as room
from kvboost.runtime.cost.calibrate import Calibration, calibrate, calibrated
from kvboost.runtime.cost.model import TimedPass
from kvboost.runtime.model.fingerprint import namespace_of
from kvboost.runtime.model.support import examine
from tests.boosting import tokenizer
from tests.tiny_models import SUPPORTED, TRAPS, tiny_model

GOOD = Calibration((TimedPass(8, 0, 0.1), TimedPass(64, 0, 0.4), TimedPass(64, 400, 0.5)), 1e-10, 2e-10)


@pytest.mark.parametrize("arch", [*SUPPORTED, *TRAPS, "gpt2", "bloom", "gemma2"])
def test_every_model_can_be_timed(arch):
    model = tiny_model(arch)
    found = calibrate(model, examine(model), budget_s=60.0)
    assert found.complete
    assert [(p.new_tokens, p.context_tokens) for p in found.passes] == [(8, 0), (64, 0), (64, 440)]
    assert min(found.copy_byte_s, found.rotate_byte_s, *(p.seconds for p in found.passes)) > 0.0
    costs = found.model()
    assert costs is not None
    assert costs.forward_s(1000) > costs.forward_s(100) > 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes(dtype):
    model = tiny_model("llama", dtype)
    assert calibrate(model, examine(model), budget_s=60.0).complete


@pytest.mark.parametrize("rope", [None, "dynamic", "longrope", "yarn"])
def test_timing_leaves_the_model_as_it_was(rope):
    model = tiny_model("llama", rope=rope)
    ids = torch.arange(3, 60)[None]
    before = model(input_ids=ids).logits
    calibrate(model, examine(model))
    assert torch.equal(model(input_ids=ids).logits, before)


@pytest.fixture
def opened():
    model = tiny_model("llama")
    support = examine(model)
    return model, support, namespace_of(model, tokenizer(), support, "somebody")


def test_a_machine_without_time_is_not_kept_waiting(opened):
    model, support, _ = opened
    found = calibrate(model, support, budget_s=0.0)
    assert len(found.passes) == 1
    assert not found.complete
    # One length tells nothing of a token's cost; a second one does.
    assert found.model() is None
    assert found.model([TimedPass(400, 0, 1.0)]) is not None


def test_what_is_incomplete_is_not_kept(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "calibrate", lambda *args: replace(GOOD, complete=False))
    calibrated(*opened, tmp_path)
    assert not (tmp_path / "calibrations").exists()


def kept_file(folder):
    (path,) = (folder / "calibrations").iterdir()
    return path


def test_it_is_kept_for_the_next_start_and_for_other_tenants(opened, tmp_path, monkeypatch):
    model, support, namespace = opened
    monkeypatch.setattr(room, "calibrate", lambda *args: GOOD)
    assert calibrated(*opened, tmp_path) == GOOD

    def again(*args):
        raise AssertionError("calibrated twice")

    monkeypatch.setattr(room, "calibrate", again)
    assert calibrated(*opened, tmp_path) == GOOD
    assert calibrated(model, support, replace(namespace, tenant="another"), tmp_path) == GOOD
    assert [p.name for p in (tmp_path / "calibrations").iterdir()] == [kept_file(tmp_path).name]


def test_another_number_of_threads_is_timed_anew(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "calibrate", lambda *args: GOOD)
    calibrated(*opened, tmp_path)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    calibrated(*opened, tmp_path)
    assert len(list((tmp_path / "calibrations").iterdir())) == 2


def altered(**changes):
    return json.dumps(json.loads(json.dumps(asdict(GOOD))) | changes)


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "17", "null", '"passes"', "{}", b"\xff\xfe\x00",
        altered(passes=[]),
        altered(passes=[[8, 0, 0.1]]),
        altered(passes=[{"new_tokens": 8, "context_tokens": 0, "seconds": -1}]),
        altered(passes=[{"new_tokens": 0, "context_tokens": 0, "seconds": 1}]),
        altered(passes=[{"new_tokens": 8, "context_tokens": -1, "seconds": 1}]),
        altered(passes=[{"new_tokens": 8, "context_tokens": 0, "seconds": float("nan")}]),
        altered(copy_byte_s=float("inf")),
        altered(rotate_byte_s="fast"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_timed_again_and_replaced(opened, tmp_path, monkeypatch, content):
    monkeypatch.setattr(room, "calibrate", lambda *args: GOOD)
    calibrated(*opened, tmp_path)
    path = kept_file(tmp_path)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert calibrated(*opened, tmp_path) == GOOD
    assert json.loads(path.read_text()) == json.loads(altered())


def test_a_folder_that_cannot_be_written_costs_only_the_timing(opened, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert calibrated(*opened, blocked).passes
