"""The evals of work beside work, from their command line to their result."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from evals import stalls
from evals._bench import Bench
from evals._beside import beside
from evals._latency_checks import against_in_process


def test_stalls(bench: Bench, tmp_path: Path) -> None:
    before = bench.model.generation_config.eos_token_id
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    sizes = ["--answers", "2", "--newcomers", "2", "--tokens", "20", "--match-s", "0.01", "--document-tokens", "60"]
    assert stalls.main(["--quick", "--embedder", "none", "--json", str(out), "--plot", str(plot), *sizes], bench) == 0
    result = json.loads(out.read_text())
    quick, slow = result["rows"]
    assert (quick["match_s"], slow["match_s"]) == (0.0, 0.01)
    assert min(row["longest_gap_s"] - row["median_gap_s"] for row in result["rows"]) >= 0.0
    assert result["checks"][0]["value"] == pytest.approx(slow["longest_gap_s"] / quick["longest_gap_s"])
    assert bench.model.generation_config.eos_token_id == before


def test_busy_processes_run_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    import evals._beside as module

    started, real = [], module.subprocess.Popen

    def start(*arguments: object, **more: object) -> object:
        started.append(real(*arguments, **more))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=start))
    with beside(2):
        assert [process.poll() for process in started] == [None, None]
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_a_service_is_judged_against_the_same_prompt_in_process() -> None:
    def cell(transport: str, tokens: int, ttft_s: float) -> dict[str, object]:
        same = {"tier": "exact", "new_share": 0.1, "dtype": "float32"}
        return {**same, "tokens": tokens, "transport": transport, "ttft_s": ttft_s}

    cells = [cell("in_process", n, float(n)) for n in (1, 2, 3)]
    cells += [cell("unix", n, n * factor) for n, factor in ((1, 1.1), (2, 1.0), (3, 9.0), (4, 1.0))]
    (row,) = against_in_process(cells)
    assert row["value"] == pytest.approx(1.1)
    assert row["met"]
