"""``kvboost plan``: donors and estimates for a prompt, without the model's pass over it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvboost.services import cli
from tests.boosting import document
from tests.servers import cache_server


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVBOOST_EMBEDDER__MODEL", "none")
    Path("old.txt").write_text("\n\n".join([document(1), document(2), "And now?"]))
    Path("new.txt").write_text("\n\n".join([document(2), document(1), "What is it?"]))


def test_the_plan_names_donors_shifts_and_estimates(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "new.txt", "--json", "--after", "old.txt", "--model", str(model_dir)]) == 0
    plan = json.loads(capsys.readouterr().out)
    spans = plan["spans"]
    assert [span["end"] for span in spans[:-1]] == [span["start"] for span in spans[1:]]
    assert (spans[0]["start"], spans[-1]["end"]) == (0, plan["prompt_tokens"])
    reused = [span for span in spans if span["tier"] != "computed"]
    assert sum(span["end"] - span["start"] for span in reused) == plan["reused_tokens"] > 0
    assert {span["start"] - span["donor_start"] for span in reused} == {span["shift"] for span in reused}
    assert min(span["shift"] for span in reused) < 0 < max(span["shift"] for span in reused)  # they changed places
    assert 0 < plan["recomputed_tokens_at_most"] < plan["reused_tokens"]
    assert plan["full_s"] > 0
    assert plan["reuse_s"] > 0
    assert plan["worth_it"] == (plan["verdict"] is None)


def test_a_running_cache_is_asked_and_nothing_is_stored(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cache_server() as server:
        arguments = ["--cache", server.address, "--model", str(model_dir)]
        for _ in range(2):
            assert cli.main(["plan", "new.txt", *arguments]) == 0
            shown = capsys.readouterr().out
            assert "0 of " in shown
            assert f"looked up in the cache at {server.address}." in shown
        assert cli.main(["plan", "new.txt", "--after", "old.txt", *arguments]) == 0
    shown = capsys.readouterr().out
    assert " exact " in shown
    assert "estimated: " in shown


def test_the_models_pass_is_not_run_on_the_prompt(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the prompt was prepared")

    monkeypatch.setattr("kvboost.runtime.prepare.prepare.Preparer.prepare", refuse)
    assert cli.main(["plan", "new.txt", "--model", str(model_dir)]) == 0


def test_a_cache_that_does_not_answer_is_an_error(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "new.txt", "--cache", "unix:/nowhere/none.sock", "--model", str(model_dir)]) == 2
    assert "/nowhere/none.sock" in capsys.readouterr().err
