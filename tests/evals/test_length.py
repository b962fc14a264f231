"""The length eval at small sizes, and what it calls a failure."""

import json
import sys
import time

import pytest

from evals import length
from evals._bench import Bench
from evals._length_measure import CpuStages, ResidentPeak


def test_end_to_end(bench: Bench, tmp_path, capsys) -> None:
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    # The status depends on timings, which other work on this machine may upset; what was reused does not.
    assert length.main(["--quick", "--tokens", "400", "1600", "--model-tokens", "400", *files], bench) in (0, 1)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    rows = result["rows"]
    assert [(row["model"], row["tokens"]) for row in rows[::4]] == [
        ("tiny", 400), ("tiny", 1600), ("configured", 400),
    ]  # fmt: skip
    assert [row["kind"] for row in rows] == [*length.KINDS] * 3
    for row in rows:
        assert row["extra_bytes"] is None or row["extra_bytes"] >= 0
        assert {"segment", "match", "plan", "harvest", "put", "forward"} <= set(row["stages_cpu_s"])
        assert row["cpu_s"] >= max(row["stages_cpu_s"].values()) * 0.5
        if row["kind"] != "cold":
            assert row["reused_tokens"] > 0.4 * row["prompt_tokens"]
            assert {"fetch", "repair"} <= set(row["stages_cpu_s"])
    assert {each["kind"] for each in result["growth"]} == set(length.KINDS)
    assert {each["model"] for each in result["growth"]} == {"tiny"}


def row(tokens, seconds, extra_bytes=0):
    stages = {"plan": seconds, "forward": 100.0 * tokens**2}
    return {
        "model": "tiny", "kind": "shifted", "prompt_tokens": tokens, "stages_cpu_s": stages,
        "extra_bytes": extra_bytes,
    }  # fmt: skip


def failures(*rows):
    return list(length._failures(rows, list(length._growth(rows))))


def test_a_stage_that_grows_faster_than_the_prompt_and_much_memory_are_failures() -> None:
    assert failures(row(1000, 0.1), row(4000, 0.6)) == []
    [slow] = failures(row(1000, 0.1), row(4000, 1.6))
    assert "plan of shifted prompts: time per token grew 2.00x" in slow
    assert failures(row(1000, 0.001), row(4000, 0.016)) == []  # too little to tell
    [large] = failures(row(1000, 0.1, 300 << 20))
    assert "took 300 MiB beside its K/V" in large


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's /proc")
def test_memory_that_is_held_for_a_moment_is_seen() -> None:
    end_s = time.monotonic() + 60.0
    with ResidentPeak() as peak:
        held = bytearray(64 << 20)
        held[::4096] = b"1" * len(held[::4096])
        while peak.seen < 50 << 20 and time.monotonic() < end_s:
            time.sleep(0.001)
        del held
    assert peak.grown is not None
    assert peak.grown >= 50 << 20


def test_stages_are_timed_by_the_work_of_their_thread() -> None:
    stages = CpuStages()
    with stages.measure("work"):
        sum(range(200_000))
    assert stages.seconds["work"] > 0.0
