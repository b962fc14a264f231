"""Chunks in place give what a slab gives, and the eval runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from evals import segments


@pytest.mark.parametrize(("size", "queries"), [(16, 1), (16, 5), (64, 3)])
def test_both_ways_give_the_same(size: int, queries: int) -> None:
    layer = segments.make_layer(128, size, queries, seed=0)
    layer.place()
    torch.testing.assert_close(layer.in_place(), layer.over_slab(), atol=1e-5, rtol=1e-4)


def test_it_runs(tmp_path: Path) -> None:
    out, plot = tmp_path / "s.json", tmp_path / "s.png"
    assert segments.main(["--quick", "--tokens", "1024", "--json", str(out), "--plot", str(plot)]) == 0
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    assert len(rows) == 12
    assert all(row["ratio"] == row["segments_s"] / (row["slab_s"] + row["place_s"]) for row in rows)
    assert plot.stat().st_size > 0
