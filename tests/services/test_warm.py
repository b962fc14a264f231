"""``kvboost warm``: documents through a running runtime, and the question that finds them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvboost.client import RuntimeClient
from kvboost.errors import InputError
from kvboost.sampling import GREEDY
from kvboost.services import cli
from kvboost.services.documents import read_documents
from kvboost.types import Tier
from tests.boosting import document
from tests.servers import cache_server, runtime_server, together
from tests.tiny_models import tiny_model, tiny_tokenizer

TIMEOUT_S = 120.0


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("model")
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("KVBOOST_POLICY__WORTH_IT", "false")  # the prefill of a tiny model costs less than most fetches
        cache = f"unix:{folder}/cache.sock"
        with cache_server(cache), together(runtime_server(cache, folder)) as (server,):
            yield server.address


def warm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvboost.services.cli", "warm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_a_question_finds_documents_that_were_warmed_in_any_order(runtime: str, tmp_path: Path) -> None:
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "one.txt").write_text(document(1))
    (tmp_path / "docs" / "deep" / "two.md").write_text(document(2))
    (tmp_path / "three.jsonl").write_text(json.dumps({"text": document(3)}) + "\n\n")
    first = warm("docs", "three.jsonl", "--runtime", runtime, "--json")
    assert first.returncode == 0, first.stderr
    summary = json.loads(first.stdout)
    assert (summary["documents"], summary["already_cached"]) == (3, 0)
    assert summary["tokens"] > 0
    assert summary["stored_chunks"] > 0
    assert summary["seconds"] > 0
    client = RuntimeClient(runtime)
    prompt = f"{document(3)}\n\n{document(1)}\n\n{document(2)}\n\nWhat came first?"
    report = client.answer(prompt, max_new_tokens=4, sampling=GREEDY).report
    client.close()
    assert report.tokens_by_tier[Tier.PREFIX] > 20  # the third document begins the prompt as it was warmed,
    assert report.tokens_by_tier[Tier.EXACT] > 40  # and the others have moved
    again = warm("docs", "three.jsonl", "--runtime", runtime)
    assert again.returncode == 0, again.stderr
    assert "3 documents of " in again.stdout
    assert "3 were there already" in again.stdout


def test_a_document_too_long_is_told_by_its_file(runtime: str, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("water " * 2000)
    done = warm("long.txt", "--runtime", runtime)
    assert done.returncode == 2
    assert done.stderr.startswith("kvboost: long.txt has ")
    assert done.stderr.endswith("; split it\n")
    assert done.stdout == ""


def test_where_no_runtime_runs_the_remedy_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.txt").write_text("Water.")
    assert cli.main(["warm", "one.txt", "--runtime", f"unix:{tmp_path}/none.sock"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(
        f"kvboost: no runtime answers at unix:{tmp_path}/none.sock; start one with kvboost serve"
    )
    assert shown.out == ""


def test_a_file_reached_twice_is_read_once_and_others_in_a_folder_are_left(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden.txt").write_text("hidden")
    (tmp_path / "picture.png").write_bytes(b"\xff")
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "b.md").write_text("B")
    assert [one.text for one in read_documents([".", "*.txt", "a.txt"])] == ["A", "B"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("gone.txt", None, "gone.txt cannot be read (No such file or directory)"),
        ("*.none", None, "*.none matches no file"),
        ("blank.txt", b" \n", "blank.txt is empty"),
        ("bytes.txt", b"caf\xe9", "bytes.txt is not UTF-8 text (byte 3)"),
        ("broken.jsonl", b'{"text": "a"}\n{', "broken.jsonl:2 is not JSON"),
        ("other.jsonl", b'{"body": "a"}', "other.jsonl:1 has no text"),
        ("list.jsonl", b"[1]", "list.jsonl:1 has no text"),
    ],
)
def test_what_cannot_be_read_is_told_by_name(tmp_path: Path, name: str, content: bytes | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_documents([name])
    assert str(caught.value).startswith(sentence)
    assert "; " in str(caught.value)


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty holds no file that ends in"):
        read_documents(["empty"])
