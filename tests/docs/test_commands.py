"""Every command and every piece of Python in the README and the documentation runs here, page by page.

A page's blocks run in their order in one folder, as a reader would run them. The model is a tiny one under the demo
model's name, ports and sockets are free ones, and the embedder is off: what is tested is that the pages are right, not
the model.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kvboost.runtime.model.demo_model import demo_model_path
from tests.docs.blocks import COMMANDS, PAGES, ROOT, Block, blocks_of
from tests.docs.free_ports import free_ports
from tests.docs.statically import check
from tests.tiny_models import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.timeout(600)  # a page with three servers takes a minute on a busy machine

READY = ("listening on ", "Ctrl-C stops it")
PATIENCE_S = 120.0
PORTS = ("8000", "7461", "7462")
SOCKET = "/tmp/kvboost.sock"
MODEL = "SmolLM2-135M-Instruct"
BLOCKS = {page: blocks_of(page) for page in PAGES}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / MODEL
    model = tiny_model("llama", max_position_embeddings=2048)
    model.save_pretrained(folder)
    tiny_tokenizer(model_max_length=2048).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_runs_as_it_is_written(page: Path, model: Path, tmp_path: Path) -> None:
    blocks = [block for block in BLOCKS[page] if block.treatment != "text"]
    for block in blocks:
        print(block)
        if "curl " in block.body and block.treatment == "run" and shutil.which("curl") is None:
            pytest.skip(f"{block} needs curl, which is not installed")
    places = {f"{before}{port}": f"{before}{free}" for port, free in free_ports(PORTS).items() for before in (":", " ")}
    places[SOCKET] = str(tmp_path / "cache.sock")
    found_at = demo_model_path(tmp_path / "cache" / "kvboost")
    found_at.parent.mkdir(parents=True)
    found_at.symlink_to(model)
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "KVBOOST_MODEL__NAME_OR_PATH": str(model),
        "KVBOOST_EMBEDDER__MODEL": "none",
        "KVBOOST_CACHE__MAX_BYTES": "64MiB",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    with ExitStack() as stack:
        for block in blocks:
            body = block.body
            for written, used in places.items():
                body = body.replace(written, used)
            if block.treatment == "static":
                check(block.body)
            elif block.treatment == "background":
                stack.enter_context(serving(block, body, tmp_path, env))
            else:
                run(block, body, tmp_path, env)


def command_of(block: Block, body: str) -> list[str]:
    if block.language in COMMANDS:
        return ["bash", "-euo", "pipefail", "-c", body]
    return [sys.executable, "-c", body]


def run(block: Block, body: str, folder: Path, env: dict[str, str]) -> None:
    done = subprocess.run(
        command_of(block, body), cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert '"error":' not in done.stdout, f"{block}\n{done.stdout}"
    print(done.stdout[-2000:])


@contextmanager
def serving(block: Block, body: str, folder: Path, env: dict[str, str]) -> Iterator[None]:
    """Run a server until the page ends; go on when it says that it is ready."""
    log = folder / f"server-{block.line}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command_of(block, f"exec {body}"), cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        end_s = time.monotonic() + PATIENCE_S
        while not any(ready in log.read_text() for ready in READY):
            assert process.poll() is None, f"{block} ended\n{log.read_text()}"
            assert time.monotonic() < end_s, f"{block} is not ready\n{log.read_text()}"
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()


def test_no_block_is_passed_over_silently() -> None:
    every = [block for blocks in BLOCKS.values() for block in blocks]
    print("\n".join(map(str, every)))
    assert sum(block.treatment == "run" for block in every) > 10
    for block in every:
        assert bool(block.reason) == (block.treatment == "static"), block
        if block.treatment == "text":
            assert not any(line.startswith(("kvboost ", "$ ", "make ")) for line in block.body.splitlines()), block


def test_every_command_of_the_cli_is_documented() -> None:
    from kvboost.services.cli import COMMANDS as KNOWN

    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in KNOWN:
        assert f"kvboost {name.replace('_', '-')}" in text or f"`{name.replace('_', '-')}`" in text, name
