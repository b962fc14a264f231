"""The evals of speed from their command line to their result, with real servers over a tiny model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals import _peer_backends, latency, peers, throughput
from evals._bench import Bench
from evals._clocks import Plain, Resident, TokenClock, crop, twin
from evals._corpus import Corpus
from evals._latency_cells import make_group
from evals._workers import worker
from kvboost.errors import KVBoostError
from kvboost.policy import ReusePolicy
from tests.tiny_models import random_ids, tiny_model, tiny_tokenizer

Main = Callable[..., int]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model where processes of their own can load it."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model("llama", max_position_embeddings=4096).save_pretrained(folder)
    tiny_tokenizer(model_max_length=4096).save_pretrained(folder)
    return folder


def _run(main: Main, folder: Path, *options: str, bench: Bench | None = None) -> dict[str, Any]:
    argv = ["--quick", "--embedder", "none", "--json", str(folder / "out.json"), "--plot", str(folder / "out.png")]
    assert main([*argv, *options], bench) == 0
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    result: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert {"commit", "model", "machine", "seed"} <= set(result)
    return result


def test_latency(bench: Bench, tmp_path: Path) -> None:
    options = ["--tokens", "384", "--shares", "0.05", "--repetitions", "1", "--dtypes", "float32"]
    result = _run(latency.main, tmp_path, *options, "--handover-mib", "16", bench=bench)
    cells = {(cell["tier"], cell["transport"]): cell for cell in result["cells"]}
    assert len(cells) == len(result["cells"]) == 4 * 3
    for cell in result["cells"]:
        assert cell["fallback"] is None
        assert cell["ttft_s"] > 0.0
        assert cell["baseline_ttft_s"] > 0.0
        assert {"tokenise", "segment", "match", "recompute", "first_decode"} <= set(cell["stages_s"])
        assert sum(cell["tokens_by_tier"].values()) == cell["prompt_tokens"]
        if cell["tier"] == "cold":
            assert cell["resident_ttft_s"] is None
            assert cell["reused_tokens"] < 0.1 * cell["prompt_tokens"]
        else:
            assert cell["resident_ttft_s"] > 0.0
            assert cell["reused_tokens"] > 0.5 * cell["prompt_tokens"]
    for transport in ("in_process", "unix", "tcp"):
        prefix = cells["prefix", transport]
        assert prefix["reused_tokens"] == prefix["tokens_by_tier"]["prefix"]
        assert prefix["computed_tokens"] <= 0.08 * prefix["prompt_tokens"]
        assert cells["shifted", transport]["tokens_by_tier"]["exact"] > 0
        assert {"kl_mean", "top1_agreement"} <= set(cells["shifted", transport])
    assert [cells["prefix", way]["handover"] for way in ("unix", "tcp")] == ["shared memory", "frames"]
    paths = [row["path"] for row in result["handover"]]
    assert paths == ["memcpy", "in_process", "shared memory", "unix frames", "tcp frames", "unary 64 MiB"]
    assert all(row["bytes_per_s"] > 0.0 and row["bytes"] == 16 << 20 for row in result["handover"])
    assert len(result["slopes"][0]["points"]) == 4


@pytest.mark.parametrize(("option", "named"), [(["--shares", "5"], "--shares"), (["--tokens", "40"], "--tokens 40")])
def test_latency_names_what_is_wrong(
    bench: Bench, capsys: pytest.CaptureFixture[str], option: list[str], named: str
) -> None:
    options = ["--quick", "--embedder", "none", "--skip", "handover", "--transports", "in_process"]
    assert latency.main([*options, *option], bench) == 2
    assert named in capsys.readouterr().err


def test_the_cells_are_what_they_are_called() -> None:
    group = make_group(tiny_tokenizer(), 400, [0.02, 0.1], ["prefix", "shifted", "edited", "cold"], ReusePolicy(), 3)
    base, cached = group.donors
    for case in group.cases:
        assert abs(len(case.prompt) - len(group.base)) <= 40
        if case.tier == "prefix":
            assert case.prompt != base
            assert case.common >= len(base) - round(case.new_share * len(base))
        elif case.tier == "shifted":
            assert (case.policy.repair, case.policy.recompute_ratio) == ("query", case.new_share)
            assert set(case.prompt) & set(cached)
        elif case.tier == "edited":
            assert 0.2 * len(cached) < case.common < 0.8 * len(cached)


def test_the_resident_limit_computes_the_last_tokens_only_and_gives_the_same_cache() -> None:
    model = tiny_model("llama")
    plain = Plain(twin(model))
    ids = random_ids(60)
    _, cache = plain.ttft(ids)
    whole = cache.layers[0].keys.clone()
    resident = Resident(plain, ids, cache)
    seen: list[int] = []
    plain.model.register_forward_hook(lambda module, args, output: seen.append(output.logits.shape[1]))
    widths: list[int] = []
    layer = plain.model.model.layers[0]
    layer.register_forward_pre_hook(lambda module, args: widths.append(args[0].shape[1]))
    for computed in (7, 1, 20):
        assert resident.ttft(computed) > 0.0
        assert resident.ttft_copied(computed) > 0.0
    assert widths == [7, 7, 1, 1, 20, 20]
    crop(cache, 60)
    assert (resident._cache.layers[0].keys - whole).abs().max() < 1e-5


def test_a_twin_shares_the_weights_and_nothing_else() -> None:
    model = tiny_model("llama")
    other = twin(model)
    pairs = list(zip(model.parameters(), other.parameters(), strict=True))
    assert all(a is b for a, b in pairs)
    other.register_forward_hook(lambda module, args, output: None)
    assert not model._forward_hooks


def test_a_token_clock_hears_new_tokens_only() -> None:
    clock = TokenClock()
    tiny_model("llama").generate(random_ids(9), max_new_tokens=3, min_new_tokens=3, streamer=clock)
    assert len(clock.times_s) == 3
    assert clock.times_s == sorted(clock.times_s)


def test_the_corpus_gives_no_part_twice() -> None:
    tokenizer = tiny_tokenizer()
    corpus = Corpus(tokenizer, 0)
    first, second = corpus.take(50), corpus.take(50)
    assert first != second
    assert abs(len(tokenizer(first)["input_ids"]) - 50) <= 4
    with pytest.raises(KVBoostError, match="--tokens"):
        corpus.take(10_000_000)


def test_peers_without_the_peer(model_dir: Path, tmp_path: Path) -> None:
    options = ["--model", str(model_dir), "--tokens", "240", "--repetitions", "1", "--answer-tokens", "4"]
    result = _run(peers.main, tmp_path, *options, "--backends", "ours", "continuous batching")
    assert not result["peer"]
    assert result["comparison"] == []
    rows = {(row["workload"], row["cell"], row["backend"]): row for row in result["rows"]}
    assert {key[2] for key in rows} == {"transformers", "ours", "continuous batching"}
    assert {key[0] for key in rows} == {"system prompt", "documents", "edit", "chat", "threads"}
    assert all(row["errors"] == 0 and row["ttft_s"] > 0.0 for row in rows.values())
    warm = rows["system prompt", "warm", "ours"]
    assert warm["reuse"] > 0.5
    assert warm["equal_share"] == 1.0
    assert warm["kl_first"] < 1e-4
    assert rows["documents", "reordered", "ours"]["reuse"] > 0.5
    assert rows["system prompt", "warm", "continuous batching"]["equal_share"] == 1.0


def test_peers_judge_wait_and_closeness() -> None:
    def row(backend: str, ttft_s: float, equal_share: float, kl: float) -> dict[str, Any]:
        same = {"workload": "chat", "cell": "turn 1", "reuse": 0.0, "errors": 0, "n": 1}
        return {**same, "backend": backend, "ttft_s": ttft_s, "equal_share": equal_share, "kl_first": kl}

    def judged(ours: dict[str, Any], peer: dict[str, Any]) -> tuple[bool, str]:
        (made,) = peers._comparison([ours, peer])
        return made["shorter_wait"], made["closeness"]

    assert judged(row("ours", 1.0, 1.0, 0.0), row("peer", 2.0, 0.5, 0.1)) == (True, "closer")
    assert judged(row("ours", 3.0, 0.5, 0.1), row("peer", 2.0, 1.0, 0.0)) == (False, "farther")
    assert judged(row("ours", 1.0, 1.0, 1e-7), row("peer", 2.0, 1.0, 0.0)) == (True, "equal")
    assert judged(row("ours", 1.0, 1.0, 0.1), row("peer", 2.0, 0.5, 0.0)) == (True, "mixed")


def test_a_backend_that_cannot_start_is_named(
    model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--quick", "--embedder", "none", "--model", str(model_dir), "--tokens", "240"]
    assert peers.main([*options, "--peer-python", "/nowhere/python"]) == 2
    assert "--peer-python /nowhere/python" in capsys.readouterr().err


def test_throughput(model_dir: Path, tmp_path: Path) -> None:
    options = ["--model", str(model_dir), "--runtimes", "2", "--items", "6", "--document-tokens", "60"]
    (row,) = _run(throughput.main, tmp_path, *options, "--answer-tokens", "2", "--caches", "shared")["rows"]
    assert (row["runtimes"], row["caches"], row["requests"], row["fallbacks"]) == (2, "shared", 6, 0)
    assert row["requests_per_s"] > 0.0
    assert 0.0 < row["hit_share"] < 1.0


def test_transformers_own_prefix_reuse_keeps_what_prompts_share() -> None:
    backend = _peer_backends.OwnPrefix(tiny_model("llama"), tiny_tokenizer(), {})
    plain = _peer_backends.Plain(tiny_model("llama"), tiny_tokenizer(), {})
    first, second = "the people of the water say that", "the people of the water use words"
    assert backend.generate(first, 3)["reuse"] == 0.0
    answer = backend.generate(second, 3)
    assert 0.3 < answer["reuse"] < 1.0
    assert answer["tokens"] == plain.generate(second, 3)["tokens"]
    assert backend.generate(first, 3)["tokens"] == plain.generate(first, 3)["tokens"]
    backend.reset()
    assert backend.generate(second, 3)["reuse"] == 0.0


def test_a_worker_that_ends_says_why() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no model here')"]
    with worker("runtime 0", command) as started, pytest.raises(KVBoostError, match="runtime 0 ended: no model here"):
        started.ask({})
