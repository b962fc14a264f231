"""The eval of several streams at once, over a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

from evals import concurrency
from evals._bench import Bench


def test_streams_at_once_are_compared_with_one_after_another(bench: Bench, tmp_path: Path) -> None:
    sizes = ["--items", "3", "--documents", "2", "--document-tokens", "60", "--answer-tokens", "6", "--quick"]
    out = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    assert concurrency.main([*sizes, *out, "--streams", "1", "3"], bench) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    rows = result["rows"]
    assert [(row["prompts"], row["streams"]) for row in rows] == [
        ("cached", 1),
        ("cached", 3),
        ("computed", 1),
        ("computed", 3),
    ]
    assert all(row["same_answers"] == 1.0 and row["requests"] == 3 for row in rows)
    assert all((row["reuse_share"] > 0.3) == (row["prompts"] == "cached") for row in rows)
    assert set(result["ratios"]) == {"cached", "computed"}
