"""``kvboost serve``: one command, three processes, and none of them left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from openai import OpenAI

from tests.tiny_models import tiny_model, tiny_tokenizer

PATIENCE_S = 120.0
COMMANDS = ("serve-gateway", "serve-cache", "serve-runtime")


@dataclass(frozen=True)
class Serving:
    process: subprocess.Popen[str]
    welcome: str

    @property
    def url(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+(?=/v1)", self.welcome)
        assert found
        return found.group()

    def children(self) -> dict[str, int]:
        """Return the process ids of its servers, by command."""
        found: dict[str, int] = {}
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                arguments = child.cmdline()
                if arguments[1:3] == ["-m", "kvboost.services.child"]:
                    found[arguments[3]] = child.pid
        return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model = tiny_model("llama", max_position_embeddings=2048)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    tiny_tokenizer(model_max_length=2048).save_pretrained(folder)
    return folder


@contextmanager
def serving(model: Path, *arguments: str) -> Iterator[Serving]:
    argv = ["serve", "--port", "0", "--model", model.name, "--set", "embedder.model=none", "--threads", "1", *arguments]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvboost.services.cli", *argv],
        cwd=model.parent,
        env={**os.environ, "XDG_CACHE_HOME": str(model / "cache"), "KVBOOST_CACHE__MAX_BYTES": "64MiB"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        welcome = "".join(_until(lines, "Ctrl-C stops it"))
        assert welcome, process.communicate(timeout=PATIENCE_S)[1]
        yield Serving(process, welcome)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def _until(lines: Iterator[str], last: str) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith(last):
            return


def warm_as_told(welcome: str, folder: Path) -> dict[str, object]:
    """Run ``kvboost warm`` with the address that was printed."""
    (folder / "notes.txt").write_text("The light of the day came in. " * 8)
    told = re.search(r"kvboost (warm FILES --runtime \S+)", welcome)
    assert told
    arguments = told.group(1).replace("FILES", "notes.txt").split()
    command = [sys.executable, "-m", "kvboost.services.cli", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    summary: dict[str, object] = json.loads(done.stdout)
    return summary


def gone(pid: int) -> bool:
    try:
        return str(psutil.Process(pid).status()) == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until_gone(*pids: int) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not all(map(gone, pids)):
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_one_command_serves_chats_and_stops_all_its_servers(model: Path) -> None:
    with serving(model) as served:
        assert served.welcome.startswith("serving tiny at http://127.0.0.1:")
        children = served.children()
        assert set(children) == set(COMMANDS)
        client = OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60)
        (name,) = [one.id for one in client.models.list()]
        turns = [{"role": "user", "content": "The water and the people came together. " * 8}]
        for turn in range(3):
            answer = client.chat.completions.create(
                model=name,
                messages=turns,  # type: ignore[arg-type]
                max_tokens=8,
                temperature=0,
                extra_body={"kvboost": {"wait_for_store": True}},
            )
            turns += [{"role": "assistant", "content": answer.choices[0].message.content or ""}]
            turns += [{"role": "user", "content": "And then?"}]
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            cached = answer.usage.prompt_tokens_details.cached_tokens or 0
            assert turn == 0 or cached > 0.8 * answer.usage.prompt_tokens
        assert client._client.get(f"{served.url}/").text.startswith("<!doctype html>")
        cache = client._client.get(f"{served.url}/kvboost/overview").json()["cache"]
        assert cache["max_bytes"] == 64 << 20  # a variable of the environment holds for the servers
        client.close()
        command = served.welcome.partition("try it:\n")[2].partition("\n\n")[0]
        tried = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
        assert tried.returncode == 127 or '"role":"assistant"' in tried.stdout  # 127: no curl is installed
        assert warm_as_told(served.welcome, model.parent)["documents"] == 1
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE_S) == 0
        until_gone(*children.values())
        assert served.process.stderr is not None
        assert "Traceback" not in served.process.stderr.read()


def test_a_server_that_dies_ends_the_others_and_is_named(model: Path, tmp_path: Path) -> None:
    with serving(model, "--logs", str(tmp_path / "logs")) as served:
        children = served.children()
        os.kill(children["serve-runtime"], signal.SIGKILL)
        assert served.process.wait(PATIENCE_S) == 2
        until_gone(*children.values())
        assert served.process.stderr is not None
        last = served.process.stderr.read().strip().splitlines()[-1]
        assert last.startswith("kvboost: serve-runtime ended (killed by SIGKILL)")
        assert {file.stem for file in (tmp_path / "logs").iterdir()} == set(COMMANDS)


def test_kill_9_of_the_command_ends_its_servers(model: Path) -> None:
    with serving(model) as served:
        children = served.children()
        assert set(children) == set(COMMANDS)
        served.process.kill()
        until_gone(*children.values())


def test_kill_9_while_the_servers_start_ends_them_too(model: Path) -> None:
    argv = ["serve", "--port", "0", "--model", model.name, "--set", "embedder.model=none"]
    command = [sys.executable, "-m", "kvboost.services.cli", *argv]
    process = subprocess.Popen(command, cwd=model.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    starting = Serving(process, "")
    end_s = time.monotonic() + PATIENCE_S
    while not (children := starting.children()):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    process.kill()
    process.wait()
    until_gone(*children.values())


def test_a_port_that_is_taken_is_told_at_once(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "kvboost.services.cli", "serve", "--port", str(port), "--model", str(model)],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("kvboost: serve-gateway ended before it listened: cannot listen on 127.0.0.1:")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_model_that_is_not_there_is_told_in_one_sentence(tmp_path: Path) -> None:
    argv = ["serve", "--port", "0", "--model", str(tmp_path), "--set", "embedder.model=none"]
    done = subprocess.run(
        [sys.executable, "-m", "kvboost.services.cli", *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("kvboost: serve-runtime ended before it listened: model")
    assert "cannot be loaded" in last
