"""Each example as a user runs it, against a running ``kvboost serve`` with a tiny model."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tiny_models import tiny_model, tiny_tokenizer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S = 180.0
CONTEXT = 4096


@dataclass(frozen=True)
class Serving:
    url: str
    runtime: str
    model: Path


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    model = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model("llama", max_position_embeddings=CONTEXT).save_pretrained(model)
    tiny_tokenizer(model_max_length=CONTEXT).save_pretrained(model)
    arguments = ["serve", "--port", "0", "--model", model.name, "--set", "embedder.model=none", "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvboost.services.cli", *arguments],
        cwd=model.parent,
        env={**os.environ, "XDG_CACHE_HOME": str(model / "cache"), "KVBOOST_CACHE__MAX_BYTES": "256MiB"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        welcome = ""
        for line in process.stdout:
            welcome += line
            if line.startswith("Ctrl-C"):
                break
        url, runtime = re.search(r"(http://\S+)/v1", welcome), re.search(r"--runtime (\S+)", welcome)
        assert url
        assert runtime
        yield Serving(url.group(1), runtime.group(1), model)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def said_by(example: str, *arguments: str) -> str:
    """Run an example; return what it prints."""
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("example", "needs"),
    [("langchain_rag.py", "langchain_openai"), ("llamaindex_rag.py", "llama_index.core")],
    ids=["langchain", "llamaindex"],
)
@pytest.mark.parametrize("ordered", [False, True], ids=["given", "ordered"])
def test_documents_are_found_again_in_another_order(serving: Serving, example: str, needs: str, ordered: bool) -> None:
    pytest.importorskip(needs, reason=f"{needs} is not installed; pip install -e .[dev]")
    said = said_by(example, serving.url, *([serving.runtime] if ordered else []))
    shares = [int(a) / int(b) for a, b in re.findall(r"cached (\d+) of (\d+) tokens", said)]
    assert len(shares) == len(importlib.import_module("examples.corpus").QUESTIONS)
    assert max(shares[1:]) > 0.5, said


def test_the_grpc_pipeline_reads_what_was_warmed(serving: Serving) -> None:
    said = said_by("grpc_pipeline.py", serving.runtime, str(serving.model))
    assert len(re.findall(r"^document \d+: \d+ tokens, \d+ new chunks$", said, re.MULTILINE)) == 10
    found = re.search(r"found \{(.*)\} of (\d+) tokens", said)
    assert found
    tokens = sum(int(n) for n in re.findall(r": (\d+)", found.group(1)))
    assert tokens > 0.9 * int(found.group(2)), said
    reused = re.search(r"reused (\d+), repaired (\d+)", said)
    assert reused
    assert sum(map(int, reused.groups())) > 0.9 * int(found.group(2)), said
