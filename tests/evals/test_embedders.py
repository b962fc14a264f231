"""The embedders eval, its pairs, its baseline and its curves."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals import embedders
from evals._bench import Bench
from evals._embedder_pairs import KINDS, written
from evals._ngrams import HashedNgrams
from evals._pairs import WRITTEN
from evals._roc import roc, share_at

_COSINES = st.lists(st.floats(-1, 1).map(lambda x: round(x, 1)), min_size=1, max_size=12)


def test_end_to_end(bench: Bench, tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    assert embedders.main(["--quick", "--items", "6", *files], bench) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    names = [each["embedder"] for each in result["embedders"]]
    assert names == ["ngram@1", HashedNgrams().name]
    found = {(r["embedder"], r["source"], r["language"], r["kind"]): r for r in result["rows"]}
    for name in names:
        for language, count in (("en", 20), ("zh", 10)):
            assert {kind: found[name, "written", language, kind]["n"] for kind in KINDS} == {
                "identical": count,
                "paraphrased": count,
                "changed": count,
                "unrelated": count * (count - 1) // 2,
            }
        identical = found[name, "written", "en", "identical"]
        assert identical["min"] == pytest.approx(1.0, abs=1e-5)
        changed, unrelated = (found[name, "chunks", "en", kind] for kind in ("changed", "unrelated"))
        assert changed["median"] > unrelated["median"] + 0.3
        assert changed["max"] < 1.0 - 1e-6
    assert all(r["min"] <= r["median"] <= r["max"] for r in result["rows"])
    assert all(each["chunks_per_cpu_s"] > 0.0 for each in result["embedders"])
    for each in result["embedders"]:
        rows = [r for r in result["rows"] if r["embedder"] == each["embedder"] and r["kind"] == "unrelated"]
        for language, highest in each["false_nominations_below"].items():
            assert highest == max(r["max"] for r in rows if r["language"] == language)
    assert {(c["wanted"], c["against"]) for c in result["roc"]} == {
        ("same_meaning", "unrelated"),
        ("same_meaning", "changed"),
        ("same_words", "unrelated"),
    }


def test_without_an_embedder_there_is_nothing_to_measure(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert embedders.main(["--quick"], replace(bench, embedder=None)) == 2
    assert "embedder" in capsys.readouterr().err


@pytest.mark.parametrize("language", ["en", "zh"])
def test_written_pairs_are_all_different(language: str) -> None:
    texts = list(chain.from_iterable((w.text, w.paraphrase, w.changed) for w in WRITTEN[language]))
    assert len(set(texts)) == len(texts)
    assert all(pair.left == pair.right for pair in written(language) if pair.kind == "identical")
    assert all(pair.left != pair.right for pair in written(language) if pair.kind != "identical")


def test_ngrams_are_unit_vectors_that_depend_on_the_text_alone() -> None:
    embedder = HashedNgrams()
    texts = ["", "a", "the same words", "the same wards", "别的东西"]
    rows = embedder.embed(texts)
    assert rows.shape == (5, embedder.dim)
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert np.array_equal(rows[2], embedder.embed(["the same words"])[0])
    assert rows[2] @ rows[3] > 0.5 > abs(rows[2] @ rows[4])


@given(_COSINES, _COSINES)
def test_the_area_is_the_chance_that_a_wanted_pair_comes_first(wanted: list[float], unwanted: list[float]) -> None:
    pairs = [(a > b) + 0.5 * (a == b) for a in wanted for b in unwanted]
    curve = roc(wanted, unwanted)
    assert curve.area == pytest.approx(sum(pairs) / len(pairs))
    thresholds = [point[0] for point in curve.points]
    assert thresholds == sorted(thresholds, reverse=True)
    for threshold, false_share, true_share in curve.points:
        assert false_share == sum(c >= threshold for c in unwanted) / len(unwanted)
        assert true_share == sum(c >= threshold for c in wanted) / len(wanted)


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    rng = np.random.default_rng(0)
    wanted, unwanted = rng.uniform(0.2, 1.0, 400).tolist(), rng.uniform(-0.2, 0.8, 400).tolist()
    points = roc(wanted, unwanted).points
    assert len(points) <= 60
    assert points[-1][1:] == (1.0, 1.0)
    assert points[0][0] == max(*wanted, *unwanted)
    assert share_at(wanted, 2.0) == 0.0
