"""``kvboost explain``: what would be reused of a prompt, without running it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from kvboost.errors import PromptError
from kvboost.services import cli
from kvboost.services.prompts import read_prompt
from tests.boosting import document


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVBOOST_EMBEDDER__MODEL", "none")


def test_an_empty_cache_lends_nothing_and_the_way_out_is_named(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("new.txt").write_text(document(1))
    assert cli.main(["explain", "new.txt", "--model", str(model_dir)]) == 0
    shown = capsys.readouterr().out
    assert "Reuse map of new.txt" in shown
    assert "--cache" in shown
    assert "--after" in shown
    assert "100.0%  computed" in shown
    assert "\x1b" not in shown


def test_what_ran_before_is_lent(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.txt").write_text("\n\n".join([document(1), document(2), "And now?"]))
    Path("new.txt").write_text("\n\n".join([document(2), document(1), "What is it?"]))
    arguments = ["--after", "old.txt", "--model", str(model_dir), "--html", "maps/a.html", "--png", "maps/a.png"]
    assert cli.main(["explain", "new.txt", "--json", *arguments]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["tokens_by_tier"]["exact"] > 0.5 * figures["prompt_tokens"]
    assert figures["reused_tokens"] == figures["prompt_tokens"] - figures["tokens_by_tier"]["computed"]
    assert figures["spans"][0]["start"] == 0
    assert figures["spans"][-1]["end"] == figures["prompt_tokens"]
    repaired = sum(span["end"] - span["start"] for span in figures["spans"] if span["repaired"])
    assert repaired == figures["recomputed_tokens"]
    assert isinstance(figures["saved_s"], float)
    assert 'class="exact"' in Path("maps/a.html").read_text()
    assert Path("maps/a.png").read_bytes().startswith(b"\x89PNG")


def test_a_chat_is_put_through_the_template(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("chat.json").write_text(json.dumps({"messages": [{"role": "user", "content": "water and light"}]}))
    assert cli.main(["explain", "chat.json", "--model", str(model_dir)]) == 0
    assert "<|user|>" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none.txt", None, "cannot be read"),
        ("empty.txt", b" \n", "is empty"),
        ("latin.txt", b"caf\xe9", "not UTF-8"),
        ("chat.json", b"[{]", "not JSON"),
        ("chat.json", b"[]", "must hold a list"),
        ("chat.json", b'[{"role": "user"}]', "must hold a list"),
        ("chat.json", b'"text"', "must hold a list"),
        ("long.txt", b"water " * 600, "the model's context holds 512"),
    ],
)
def test_bad_prompts_are_one_sentence(
    name: str, content: bytes | None, reason: str, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    assert cli.main(["explain", name, "--model", str(model_dir)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("kvboost: ")]
    assert len(lines) == 1
    assert reason in lines[0]


def test_a_prompt_comes_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbffrom a pipe")))
    assert read_prompt("-") == "from a pipe"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(PromptError, match="empty"):
        read_prompt("-")
