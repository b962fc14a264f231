"""``kvboost doctor``: what it finds, what it says to do, and when it exits with 1."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.client import CacheClient
from kvboost.config import Config, EmbedderConfig
from kvboost.index import LocalCache, selftest
from kvboost.index.selftest import SelfTest
from kvboost.runtime.cost.meter import FetchCost
from kvboost.runtime.cost.model import CostModel
from kvboost.runtime.model.machine import Machine
from kvboost.services import cli
from kvboost.services.doctor import cache as cache_room
from kvboost.services.doctor import machine as machine_room
from kvboost.services.doctor import search as search_room
from kvboost.services.doctor.finding import Finding, Level, Notes
from kvboost.services.doctor.model import break_even_tokens
from kvboost.services.doctor.software import examine_software
from kvboost.types import KVLayout
from tests.boosting import tokenizer
from tests.faulty_cache import FaultyCache
from tests.servers import cache_server
from tests.tiny_models import tiny_model

LAYOUT = KVLayout(2, 2, 16, 16, "float32")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("llama", tmp_path_factory)


def saved(arch: str, factory: pytest.TempPathFactory) -> Path:
    folder = factory.mktemp(arch)
    tiny_model(arch).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    status = cli.main(["doctor", "--json", *map(str, arguments)])
    shown = json.loads(capsys.readouterr().out)
    assert status == (0 if shown["healthy"] else 1)
    assert shown["healthy"] == all(finding["level"] != "broken" for finding in shown["findings"])
    return status, shown


def findings(shown: dict[str, Any], area: str, level: str) -> list[str]:
    return [f"{f['text']} -> {f['remedy']}" for f in shown["findings"] if (f["area"], f["level"]) == (area, level)]


def test_a_healthy_machine(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, shown = doctor(capsys, "--model", model_dir)
    assert status == 0
    areas = ["software", "machine", "configuration", "model", "cache", "speed", "search"]
    assert list(dict.fromkeys(f["area"] for f in shown["findings"])) == areas
    model, speed = shown["figures"]["model"], shown["figures"]["speed"]
    assert (model["architecture"], model["dtype"], model["attention"]) == ("LlamaForCausalLM", "float32", "sdpa")
    assert model["tiers"] == ["prefix", "exact", "similar", "substitute"]
    assert "half-split over 16 dimensions" in model["rope"]
    assert min(speed["copy_gb_per_s"], speed["rotate_gb_per_s"]) > 0.0
    assert shown["figures"]["search"]["faiss_right"] is True
    assert shown["figures"]["cache"]["handover"] == "in process"
    assert shown["figures"]["software"]["versions"]["torch"] == metadata.version("torch")
    assert any("gate passed" in text for text in findings(shown, "model", "ok"))


def test_the_text_has_a_line_for_each_finding(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--model", str(model_dir)]) == 0
    shown = capsys.readouterr().out
    for heading in ("software", "machine", "configuration", "model", "cache", "speed", "search"):
        assert f"{heading}\n  " in shown
    assert "  ok       tiers that are right with this model: prefix, exact, similar, substitute" in shown
    assert all(len(line) <= 100 or "/" in line for line in shown.splitlines())


def test_a_model_that_is_not_here_is_not_downloaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("kvboost.services.doctor.model.load_model", download)
    status, shown = doctor(capsys, "--model", "nobody/no-such-model")
    assert status == 0
    (text,) = findings(shown, "model", "note")
    assert "nobody/no-such-model is not on this machine" in text
    assert text.endswith("-> kvboost doctor --download")
    assert "speed" not in shown["figures"]


def test_tiers_are_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    status, shown = doctor(capsys, "--model", saved("gpt2", tmp_path_factory))
    assert status == 0
    assert shown["figures"]["model"]["tiers"] == ["prefix"]
    (text,) = findings(shown, "model", "warning")
    assert "tiers refused: exact, similar, substitute, because" in text


def test_a_model_that_cannot_be_cached_is_broken(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    status, shown = doctor(capsys, "--model", saved("mamba", tmp_path_factory))
    assert status == 1
    (text,) = findings(shown, "model", "broken")
    assert "recurrent" in text


def test_a_model_that_fails_the_gate(
    model_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvboost.runtime.tools.checkup.run_gate", lambda *_: "it leaks")
    status, shown = doctor(capsys, "--model", model_dir)
    assert status == 0
    assert any("the start-up gate failed: it leaks" in text for text in findings(shown, "model", "warning"))
    assert shown["figures"]["model"]["refused_because"] == "it leaks"


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_running_cache_is_tried_and_left_as_it_was(
    kind: str, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/cache.sock"
    with cache_server(address) as server:
        status, shown = doctor(capsys, "--model", model_dir, "--cache", server.address)
        with closing(CacheClient(server.address)) as client:
            assert client.stats().namespaces == ()
    assert status == 0
    figures = shown["figures"]["cache"]
    assert figures["address"] == server.address
    assert figures["handover"] in ("frames", "shared memory")
    assert figures["fetch_bytes_per_s"] > 0.0
    assert figures["round_trip_s"] >= 0.0


def test_a_cache_that_does_not_answer_is_broken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, shown = doctor(capsys, "--model", "nobody/none", "--cache", f"unix:{tmp_path}/nobody.sock")
    assert status == 1
    (text,) = findings(shown, "cache", "broken")
    assert "kvboost serve-cache" in text


def test_an_unknown_key_is_broken_and_the_rest_is_still_examined(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "kvboost.toml").write_text("[policy]\nthreshhold = 0.9\n")
    status, shown = doctor(capsys, "--set", "model.name_or_path=nobody/none")
    assert status == 1
    (text,) = findings(shown, "configuration", "broken")
    assert "threshhold" in text
    assert findings(shown, "search", "ok")


def test_the_file_in_force_and_what_goes_over_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "kvboost.toml").write_text("[policy]\nthreshold = 0.9\n[embedder]\nmodel = 'none'\n")
    _, shown = doctor(capsys, "--model", "nobody/none")
    assert shown["figures"]["configuration"]["file"] == str(tmp_path / "kvboost.toml")
    assert "model.name_or_path" in findings(shown, "configuration", "note")[0]
    assert "no embedder" in findings(shown, "search", "note")[0]


def found(notes: Notes) -> Finding:
    (only,) = notes.done().findings
    return only


@pytest.mark.parametrize(
    ("threads", "cores", "level"), [(4, 2, Level.WARNING), (1, 2, Level.NOTE), (2, 2, Level.OK), (1, 1, Level.OK)]
)
def test_threads_against_cores(threads: int, cores: int, level: Level) -> None:
    notes = Notes("machine")
    machine_room._look_at_cores(notes, Machine("a processor", threads, ("a GPU",)), cores)
    assert notes.done().findings[0].level is level


@pytest.mark.parametrize(("busy", "warned"), [(0.4, False), (1.9, False), (3.0, True)])
def test_other_work_on_the_cores(busy: float, warned: bool) -> None:
    notes = Notes("machine")
    machine_room._look_at_load(notes, busy, 2)
    assert [finding.level for finding in notes.done().findings] == [Level.WARNING] * warned


@pytest.mark.parametrize(
    ("space", "level"),
    [
        (None, Level.NOTE),
        (machine_room.Space(64 << 20, 64 << 20), Level.WARNING),
        (machine_room.Space(8 << 30, 1 << 20), Level.WARNING),
        (machine_room.Space(8 << 30, 1 << 30), Level.NOTE),
        (machine_room.Space(8 << 30, 8 << 30), Level.OK),
    ],
)
def test_shared_memory(space: machine_room.Space | None, level: Level) -> None:
    notes = Notes("machine")
    machine_room._look_at_shared_memory(notes, space, 2 << 30)
    assert found(notes).level is level


@pytest.mark.parametrize(("free", "level"), [(1 << 30, Level.WARNING), (4 << 30, Level.OK)])
def test_memory_against_the_budget(free: int, level: Level) -> None:
    notes = Notes("machine")
    machine_room._look_at_memory(notes, free, 2 << 30)
    assert found(notes).level is level


def test_a_package_that_is_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"xxhash": None, "transformers": "4.2"}

    def version(name: str) -> str:
        given = versions.get(name, "99999")
        if given is None:
            raise metadata.PackageNotFoundError(name)
        return given

    monkeypatch.setattr("kvboost.services.doctor.software.metadata.version", version)
    texts = {f.text: f for f in examine_software().findings}
    assert texts["package xxhash is missing"].level is Level.BROKEN
    assert any(t.startswith("transformers 4.2 is outside") and f.level is Level.WARNING for t, f in texts.items())


def test_faiss_is_right_here() -> None:
    assert selftest.self_test().right


@pytest.mark.parametrize("fault", ["order", "scores", "missing"])
def test_faiss_that_is_wrong_is_found_out(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    knn = selftest.faiss.knn

    def wrong(*args: Any, **settings: Any) -> Any:
        scores, slots = knn(*args, **settings)
        if fault == "order":
            return scores, slots[:, ::-1].copy()
        if fault == "scores":
            return scores * 0.99, slots
        return scores, slots * 0 - 1

    monkeypatch.setattr(selftest.faiss, "knn", wrong)
    assert not selftest.self_test().right
    monkeypatch.undo()
    assert selftest.self_test().right


@pytest.mark.parametrize(
    ("test", "level"),
    [
        (SelfTest(False, 0.1, 0.1), Level.BROKEN),
        (SelfTest(True, 9.0, 0.1), Level.WARNING),
        (SelfTest(True, 0.2, 0.1), Level.OK),
    ],
)
def test_what_is_said_of_faiss(test: SelfTest, level: Level) -> None:
    notes = Notes("search")
    search_room._look_at_faiss(notes, test)
    assert found(notes).level is level


@pytest.mark.parametrize("model", ["auto", "nobody/none"])
def test_an_embedder_that_is_not_here_is_a_note(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_room, "default_cache_dir", lambda: tmp_path)
    notes = Notes("search")
    search_room._look_at_embedder(notes, EmbedderConfig(model))
    assert found(notes).level is Level.NOTE


def test_a_cache_that_gives_back_other_bytes_is_found_out() -> None:
    good = LocalCache(64 << 20, None)
    assert cache_room.try_out(good, LAYOUT, 1 << 20).sound
    faulty = FaultyCache(good)
    faulty.on_fetch = lambda chunk: None
    assert not cache_room.try_out(faulty, LAYOUT, 1 << 20).sound
    faulty.on_match = lambda match: None
    assert not cache_room.try_out(faulty, LAYOUT, 1 << 20).sound
    assert good.stats().namespaces == ()


def test_damaged_kv_are_broken_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = FaultyCache(LocalCache(64 << 20, None))
    faulty.on_fetch = lambda chunk: replace(chunk, checksum=chunk.checksum ^ 1)
    monkeypatch.setattr(cache_room, "_open", lambda config: faulty)
    examination, handed = cache_room.examine_cache(Config(), LAYOUT)
    assert handed is None
    assert examination.findings[0].level is Level.BROKEN


positive = st.floats(1e-9, 1e-2)
costs = st.builds(CostModel, st.just(0.0), positive, st.just(0.0), st.just(1e-12), st.just(1e-12))


@given(costs, st.floats(0.0, 1.0), st.floats(0.0, 1e-6), st.floats(1.0, 10.0))
def test_a_slower_cache_never_breaks_even_earlier(
    model: CostModel, round_trip_s: float, byte_s: float, factor: float
) -> None:
    near = break_even_tokens(model, LAYOUT, FetchCost(round_trip_s, byte_s))
    far = break_even_tokens(model, LAYOUT, FetchCost(round_trip_s * factor, byte_s * factor))
    if far is not None:
        assert near is not None
        assert 1 <= near <= far
