"""The scale eval at small sizes, and the vectors it draws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evals import scale
from evals._scale_index import QUERIES
from evals._scale_vectors import DIM, PART, ScaleVectors


def test_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    sizes = ["--chunks", "500", "5000", "--store-chunks", "128", "640"]
    # The status depends on timings, which other work on this machine may upset; what it found does not.
    assert scale.main(["--quick", *sizes, *files]) in (0, 1)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    assert {"commit", "dirty", "machine", "versions", "seed", "argv", "date"} <= set(result)
    sizes = [(chunks, queries) for chunks in (500, 5000) for queries in QUERIES]
    assert [(row["chunks"], row["queries"]) for row in result["rows"]] == sizes
    assert not [failure for failure in result["failures"] if "grew" not in failure]
    for row in result["rows"]:
        assert row["bytes"] > row["chunks"] * DIM * 4
        assert row["file_bytes"] > row["chunks"] * DIM * 4
        assert row["same_when_loaded"]
        assert min(row[name] for name in ("search_s", "search_cpu_s", "add_s", "remove_s", "save_s", "load_s")) > 0.0
    assert [row["chunks"] for row in result["store"]] == [128, 640]
    for row in result["store"]:
        assert row["found_share"] == 1.0
        assert row["evicted_chunks"] == 12 * 64


def test_growth_above_the_bound_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scale, "MAX_EXPONENT", -9.0)
    assert scale.main(["--quick", "--chunks", "200", "400", "--store-chunks", "64"]) == 1
    assert "search of 64 queries grew" in capsys.readouterr().err


def test_vectors_depend_on_the_seed_alone() -> None:
    few, many = (np.concatenate([rows for _, rows in ScaleVectors(1).parts(n)]) for n in (100, PART + 50))
    assert few.shape == (100, DIM)
    assert few.dtype == np.float32
    assert np.array_equal(few, many[:100])
    assert not np.array_equal(few, ScaleVectors(2).rows(0)[:100])
    np.testing.assert_allclose(np.linalg.norm(many, axis=1), 1.0, atol=1e-5)


def test_known_queries_are_as_near_as_said_and_unknown_ones_are_not() -> None:
    vectors = ScaleVectors(1)
    rows = vectors.rows(0)
    known, unknown = ((vectors.queries(PART, 200, share, 3) @ rows.T).max(axis=1) for share in (1.0, 0.0))
    assert known.min() > 0.85 - 1e-4
    assert np.quantile(unknown, 0.99) < 0.85
