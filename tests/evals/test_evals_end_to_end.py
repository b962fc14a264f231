"""Each eval from its command line to its result, over a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals import chat, quality, ragchat, threshold
from evals._bench import Bench
from evals._main import to_json
from evals._quality_items import LOADED
from kvboost.config import load
from kvboost.errors import InputError

Main = Callable[..., int]
_SMALL = ["--documents", "3", "--document-tokens", "70", "--answer-tokens", "4", "--quick"]


def _run(main: Main, bench: Bench, folder: Path, *options: str) -> dict[str, Any]:
    argv = [*_SMALL, "--json", str(folder / "out.json"), "--plot", str(folder / "out.png"), *options]
    assert main(argv, bench) == 0
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    result: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert {"commit", "dirty", "model", "namespace", "machine", "versions", "seed", "argv", "date"} <= set(result)
    return result


def test_quality(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = _run(quality.main, bench, tmp_path, "--items", "1")
    printed = capsys.readouterr().out.splitlines()
    assert json.loads(printed[-1]) == result
    rows = result["rows"]
    wanted = {"task", "repair", "recompute_ratio", "kl_mean", "top1_agreement", "reuse_share", "ttft_ratio"}
    assert all(wanted <= set(row) for row in rows)
    assert {row["task"] for row in rows} == {"reordered", "edited", "alone"}
    assert result["default_policy"]["repair"] == "query"
    by_name = {row["repair"]: row for row in rows if row["task"] == "reordered"}
    for lossless in ("full", LOADED, "prefix only"):
        assert by_name[lossless]["kl_mean"] < 1e-5
        assert by_name[lossless]["top1_agreement"] == 1.0
    assert by_name["none"]["kl_mean"] > 1e-3
    assert by_name["none"]["reuse_share"] > 0.5
    assert by_name["full, bfloat16"]["kl_mean"] > 0.0
    assert all(row["recompute_ratio_charged"] <= row["recompute_ratio"] + 1e-9 for row in rows if "shift" in row)


def test_quality_on_the_users_prompts_scores_answers(bench: Bench, tmp_path: Path) -> None:
    contexts = [f"Room {n} of the house is painted in another colour than the rooms beside it are." for n in range(6)]
    line = json.dumps({"contexts": contexts, "question": "Which?", "answer": "room"})
    (tmp_path / "p.jsonl").write_text(line, encoding="utf-8")
    result = _run(quality.main, bench, tmp_path, "--prompts", str(tmp_path / "p.jsonl"), "--repairs", "query")
    assert {row["task"] for row in result["rows"]} == {"prompts"}
    scored = [row for row in result["rows"] if "shift" in row or row["repair"] == "full"]
    assert all({"containment", "exact_match", "token_f1", "rouge_l"} <= set(row) for row in scored)
    assert {row["repair"] for row in scored} == {"full", "prefix only", "none", "query", "query, no shift"}


def test_threshold(bench: Bench, tmp_path: Path) -> None:
    options = ["--items", "1", "--thresholds", "0.6", "0.9", "1.0", "--chunks", "16-64", "--max-kl", "10"]
    result = _run(threshold.main, bench, tmp_path, *options, "--write-config", str(tmp_path / "best.toml"))
    similar = [cell for cell in result["cells"] if cell["threshold"] is not None]
    assert [cell["threshold"] for cell in similar] == [0.6, 0.9, 1.0]
    shares = [cell["similar_share"] for cell in similar]
    assert shares[0] > 0.0
    assert shares == sorted(shares, reverse=True)
    assert any(cell["pareto"] for cell in result["cells"])
    best = max(result["cells"], key=lambda cell: cell["reuse_share"])
    config = load(tmp_path / "best.toml", env={}).config
    assert config.policy.threshold == result["recommended"]["policy.threshold"]
    assert config.segment.max_tokens == best["max_tokens"] == 64


def test_the_full_sweep_measures_another_wording_and_does_not_recommend_it(bench: Bench) -> None:
    args = threshold._parser().parse_args(["--thresholds", "0.6", "--chunks", "16-64"])
    tiers = ["+".join(setting.policy.tiers) for setting in threshold._settings(bench, args)]
    assert tiers[-1] == "prefix+exact+similar+substitute"
    assert len(tiers) == 4
    cells = [
        {"tiers": each, "kl_mean": 0.0, "reuse_share": float(i), "threshold": None} for i, each in enumerate(tiers)
    ]
    assert threshold._best(cells, bench.policy, 1.0) == cells[2]
    assert threshold._best(cells, replace(bench.policy, tiers=tuple(tiers[-1].split("+"))), 1.0) == cells[3]


def test_a_loss_that_no_setting_keeps_is_said(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--items", "1", "--thresholds", "0.6", "--chunks", "16-64", "--max-kl", "-1"]
    result = _run(threshold.main, bench, tmp_path, *options, "--write-config", str(tmp_path / "best.toml"))
    assert result["recommended"] is None
    assert not (tmp_path / "best.toml").exists()
    assert "no setting" in capsys.readouterr().out


def test_chat_reuses_nothing_at_first_and_most_later(bench: Bench, tmp_path: Path) -> None:
    turns = _run(chat.main, bench, tmp_path, "--items", "1", "--turns", "3")["turns"]
    assert [row["turn"] for row in turns] == [1, 2, 3]
    assert turns[0]["reuse_share"] == 0.0
    assert all(row["reuse_share"] > 0.5 for row in turns[1:])
    assert all(row["same_as_full"] == 1.0 for row in turns)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--json", "/nowhere/out.json"], "/nowhere"),
        (["--prompts", "/nowhere.jsonl"], "--prompts"),
        (["--data", "/nowhere"], "--data /nowhere"),
        (["--tasks", "sideways"], "sideways"),
    ],
)
def test_mistakes_of_the_user_end_with_status_2_and_one_sentence(
    bench: Bench, capsys: pytest.CaptureFixture[str], options: list[str], named: str
) -> None:
    assert quality.main([*_SMALL, "--items", "1", *options], bench) == 2
    shown = capsys.readouterr().err
    assert named in shown
    assert len(shown.splitlines()) == 1


def test_a_figure_that_is_no_number_is_never_published() -> None:
    with pytest.raises(InputError, match=r"rows\.1\.kl_mean"):
        to_json({"rows": [{"kl_mean": 0.0}, {"kl_mean": float("nan")}]})


def test_evals_are_listed_with_what_they_measure() -> None:
    shown = subprocess.run([sys.executable, "-m", "evals", "--list"], capture_output=True, text=True, check=True).stdout
    named = {line.split()[0] for line in shown.splitlines()}
    assert {"quality", "threshold", "chat"} <= named
    assert not any(name.startswith("_") for name in named)


def test_ragchat(bench: Bench, tmp_path: Path) -> None:
    result = _run(ragchat.main, bench, tmp_path, "--items", "1", "--turns", "2")
    first, second = result["rows"]
    assert {"turn", "reused_share", "recomputed_tokens", "ttft_ratio", "kl_mean"} <= set(first)
    assert first["recomputed_tokens"] > 0
    assert second["recomputed_tokens"] == 0
    assert second["continued_share"] > 0.5
    assert first["same_again"] == second["same_again"] == 1.0
