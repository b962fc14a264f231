"""The ordering eval over a tiny model: the ways differ as they must."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evals import ordering
from evals._bench import Bench
from evals._documents import Document
from evals._retrieval import repeated_share, traffic

_SMALL = [
    "--quick",
    "--items",
    "6",
    "--documents",
    "3",
    "--document-tokens",
    "70",
    "--answer-tokens",
    "2",
    "--pool",
    "4",
]


def test_ordering_raises_the_lossless_share_and_costs_nothing(bench: Bench, tmp_path: Path) -> None:
    # A separator has 12 tokens here; alone it is not to be reused.
    config = replace(bench.config, policy=replace(bench.config.policy, min_span=16))
    argv = [*_SMALL, "--json", str(tmp_path / "o.json"), "--plot", str(tmp_path / "o.png")]
    assert ordering.main(argv, replace(bench, config=config)) == 0
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))
    rows = {(row["order"], row["reuse"]): row for row in result["rows"]}
    assert {row["n"] for row in rows.values()} == {6}
    for row in rows.values():
        assert abs(row["prefix"] + row["exact"] + row["similar"] + row["computed"] - 1) < 1e-9
    given, ordered = rows["given", "prefix only"], rows["cache-aware", "prefix only"]
    assert ordered["prefix"] > given["prefix"]
    assert given["moved_share"] == 0 < ordered["moved_share"]
    for lossless in (given, ordered):
        assert lossless["exact"] == lossless["similar"] == 0
        assert lossless["kl_mean"] < 1e-5
        assert lossless["top1_agreement"] == 1.0
    assert rows["given", "shifted"]["reuse_share"] > ordered["reuse_share"]


def test_the_users_prompts_are_served_in_their_order(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts = [f"Room {n} of the house is painted in another colour than the rooms beside it are." for n in range(3)]
    lines = [json.dumps({"contexts": each, "question": "Which?"}) for each in (contexts, contexts[::-1])]
    (tmp_path / "p.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert ordering.main([*_SMALL, "--prompts", str(tmp_path / "p.jsonl")], bench) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["repeated_share"] == 0.5
    assert [row["moved_share"] for row in result["rows"] if row["order"] == "cache-aware"] == [0.5, 0.5]
    assert ordering.main([*_SMALL, "--data", str(tmp_path)], bench) == 2
    assert "--data is not used here" in capsys.readouterr().err


def test_traffic_repeats_by_popularity_and_by_seed() -> None:
    pool = [Document(str(i), f"text {i}") for i in range(30)]
    requests = traffic(pool, 40, 4, 1.0, seed=3)
    assert requests == traffic(pool, 40, 4, 1.0, seed=3) != traffic(pool, 40, 4, 1.0, seed=4)
    assert all(len({each.title for each in asked.documents}) == 4 for asked in requests)
    assert repeated_share(traffic(pool, 40, 4, 3.0, seed=3)) > repeated_share(requests) > 0.5
    assert repeated_share(requests[:1]) == 0
