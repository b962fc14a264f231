"""What is left out of an installation is neither imported nor missed, and named in one sentence where it is needed.

Here its modules are hidden from a process of their own; ``make test-wheels`` leaves them out for real.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvboost import extras
from kvboost.errors import KVBoostError, MissingExtraError, UnsupportedVersionError
from kvboost.services.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
CACHE = "faiss blake3 grpc_health grpc_reflection sentence_transformers"
RUNTIME = "torch transformers tokenizers safetensors huggingface_hub nltk punkt jinja2 PIL psutil gguf"
GATEWAY = "fastapi starlette pydantic uvicorn prometheus_client"

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES.split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def run(hidden: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` where the modules named in ``hidden`` are not there."""
    command = [sys.executable, "-c", f"NAMES = {hidden!r}\n{HIDE}\n{code}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)


def test_a_client_needs_nothing_else() -> None:
    code = """
import kvboost
from kvboost import CacheClient, ReusePolicy, ReuseReport
from kvboost.client import RuntimeClient
from kvboost.client.runtime_types import ChatMessage
from kvboost.documents import marked
from kvboost.errors import CacheUnavailableError, InputError
from kvboost.sampling import Sampling
from kvboost.services import cli

client = CacheClient("127.0.0.1:1", timeout_s=2.0)
try:
    client.stats()
except CacheUnavailableError:
    print("asked")
try:
    RuntimeClient("127.0.0.1:1").answer("a", max_new_tokens=-1)
except InputError as error:
    print(error)
sys.exit(cli.main(["config", "show", "--json"]))
"""
    done = run(f"{CACHE} {RUNTIME} {GATEWAY}", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("asked\nmax_new_tokens must lie in")


@pytest.mark.parametrize(
    ("hidden", "code", "sentence"),
    [
        (RUNTIME, "from kvboost import boost", "kvboost.boost needs the runtime extra"),
        (RUNTIME, "import kvboost; kvboost.engine_of", "kvboost.engine_of needs the runtime extra"),
        (RUNTIME, "import kvboost.runtime.serve.engine", "kvboost.runtime needs the runtime extra"),
        (RUNTIME, "import kvboost.segment", "kvboost.segment needs the runtime extra"),
        (CACHE, "from kvboost import LocalCache", "kvboost.LocalCache needs the cache extra"),
        (CACHE, "import kvboost.index", "kvboost.index needs the cache extra"),
        (
            CACHE,
            "from kvboost.build import build_cache\nfrom kvboost.config import Config\nc = Config()\n"
            "build_cache(c.cache, c.client, c.embedder)",
            "kvboost.index needs the cache extra",
        ),
        (
            "sentence_transformers",
            "from kvboost.index import SentenceTransformerEmbedder\nSentenceTransformerEmbedder('none').embed(['a'])",
            "an embedding model (embedder.model none does without) needs the cache extra",
        ),
        (
            "gguf",
            "import tempfile\nfrom kvboost.runtime.model.demo_model import demo_model_dir\n"
            "demo_model_dir(tempfile.mkdtemp())",
            "needs the demo extra",
        ),
    ],
)
def test_what_is_missing_is_named(hidden: str, code: str, sentence: str) -> None:
    asked = "\n".join(f"    {line}" for line in code.splitlines())
    told = f"try:\n{asked}\nexcept MissingExtraError as error:\n    print(error)"
    done = run(hidden, f"from kvboost.errors import MissingExtraError\n{told}")
    assert done.returncode == 0, done.stderr
    assert sentence in done.stdout
    assert "pip install 'kvboost-chunks[" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_every_command_names_its_extra_and_has_its_help_all_the_same() -> None:
    code = """
from kvboost.services import cli

for command in COMMANDS:
    try:
        cli.main([command, "--help"])
    except SystemExit as end:
        print("help", command, end.code)
for line in (["explain", "a.txt"], ["plan", "a.txt"], ["demo"], ["serve"], ["serve-cache"], ["serve-runtime"],
             ["serve-gateway"], ["doctor"]):
    print("status", cli.main(line), file=sys.stderr)
"""
    names = [name.replace("_", "-") for name in COMMANDS]
    done = run(f"{CACHE} {RUNTIME} {GATEWAY}", f"COMMANDS = {names!r}\n{code}")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("help ")] == [f"help {n} 0" for n in names]
    needed = {"explain": "runtime", "plan": "runtime", "demo": "demo", "serve": "all", "serve-cache": "cache"}
    needed |= {"serve-runtime": "runtime", "serve-gateway": "gateway", "doctor": "runtime"}
    lines = [line for line in done.stderr.splitlines() if line.startswith(("kvboost: ", "status "))]
    wanted: list[str] = []
    for name, extra in needed.items():
        wanted += [
            f"kvboost: kvboost {name} needs the {extra} extra: pip install 'kvboost-chunks[{extra}]'",
            "status 2",
        ]
    assert lines == wanted


@pytest.mark.parametrize(
    ("hidden", "module"),
    [
        (f"{RUNTIME} sentence_transformers {GATEWAY}", "kvboost.index.cache"),
        (f"{RUNTIME} sentence_transformers {GATEWAY}", "kvboost.services.cache_server.build"),
        (f"{CACHE} {RUNTIME}", "kvboost.services.gateway.run"),
        (f"{GATEWAY} gguf", "kvboost.services.runtime_server.build"),
    ],
)
def test_a_part_imports_nothing_of_the_others(hidden: str, module: str) -> None:
    done = run(hidden, f"import {module}")
    assert done.returncode == 0, done.stderr


def test_the_extras_are_those_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.EXTRAS.keys() <= declared.keys()
    for extra in extras.EXTRAS:
        extras.require(extra, "this test")


def test_a_missing_extra_is_an_import_error_and_one_of_ours() -> None:
    for kind in (MissingExtraError, UnsupportedVersionError):
        assert issubclass(kind, ImportError)
        assert issubclass(kind, KVBoostError)


@pytest.mark.parametrize(
    ("found", "fits"),
    [("5.23.1", False), ("5.24.0", True), ("5.24", True), ("5.30.0.dev0", True), ("6.0.0", False), ("6.0.0rc1", False)],
)
def test_versions_outside_what_was_tried_are_refused(found: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.metadata, "version", lambda name: found)
    if fits:
        extras.check_version("transformers", "5.24", "6", "kvboost.runtime")
        return
    with pytest.raises(UnsupportedVersionError) as caught:
        extras.check_version("transformers", "5.24", "6", "kvboost.runtime")
    assert str(caught.value) == (
        f"kvboost.runtime does not work with transformers {found}: pip install 'transformers>=5.24,<6'"
    )


def test_the_runtime_checks_what_the_package_declares() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["runtime"]
    asked = (ROOT / "kvboost" / "runtime" / "__init__.py").read_text()
    assert "transformers>=5.24,<6" in declared
    assert 'check_version("transformers", "5.24", "6",' in asked
    assert "torch>=2.6" in declared
    assert 'check_version("torch", "2.6", "",' in asked
