"""The main job on the real model: the demo's own processes, documents and figures. Times are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "kvboost.services.cli", "demo", "--quick"]
    command += ["--json", str(folder / "demo.json"), "--out", str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    maps = sorted((folder / "out").iterdir())
    found: dict[str, Any] = json.loads(Path(folder / "demo.json").read_text())
    return {**found, "maps": maps}


@pytest.fixture(scope="module")
def requests(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {request["name"]: request for request in result["requests"]}


def test_a_cold_prompt_reuses_nothing_and_loses_nothing(requests):
    cold = requests["cold"]
    assert cold["reused_tokens"] == 0
    assert cold["answer"] == cold["baseline_answer"]


def test_reordered_documents_are_reused(requests):
    reordered = requests["reordered"]
    assert reordered["context_tokens"] >= 2000
    assert reordered["reused_tokens"] >= 0.9 * reordered["context_tokens"]
    assert reordered["top1_agreement"] >= 0.93


def test_an_edited_document_answers_with_the_new_number(requests):
    edited = requests["edited"]
    assert edited["expected"] in edited["answer"]
    assert edited["old"] not in edited["answer"]
    assert edited["tokens_by_tier"]["similar"] > 0


def test_a_second_chat_turn_is_lossless(requests):
    chat = requests["chat"]
    assert chat["reused_tokens"] >= 0.95 * chat["context_tokens"]
    assert chat["tokens_by_tier"]["exact"] == chat["tokens_by_tier"]["similar"] == 0
    assert chat["answer"] == chat["baseline_answer"]


def test_reuse_does_not_decay_under_a_budget(result):
    sustained = result["sustained"]
    assert sustained["stored_bytes_max"] <= sustained["budget_bytes"]
    assert sustained["reuse_share_last_20"] >= 0.95 * sustained["reuse_share_first_20_warm"]


def test_every_request_has_its_reuse_map(result):
    names = {path.name for path in result["maps"]}
    for request in result["requests"]:
        assert any(request["name"] in name and name.endswith(".png") for name in names)
