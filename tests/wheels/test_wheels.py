"""The wheel in clean environments, one for each extra: what it needs is there, what it does not need is not.

Minutes each, and a package registry: ``make test-wheels`` and the nightly run ask for them, ``make test`` does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import cache_server
from tests.tiny_models import tiny_model, tiny_tokenizer

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parent.parent.parent
HEAVY = ("torch", "transformers", "faiss-cpu", "sentence-transformers", "nltk", "fastapi", "uvicorn", "gguf")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this working tree."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=600)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Make an environment with one extra, or none, and return the folder of its programs."""

    def make(extra: str) -> Path:
        subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=300)
        programs = tmp_path / "venv" / "bin"
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        command = [str(programs / "python"), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*command, wanted], check=True, timeout=1500)
        return programs

    return make


def installed(programs: Path) -> set[str]:
    """Return the names of the packages in an environment."""
    listed = subprocess.run(
        [str(programs / "python"), "-m", "pip", "list", "--format", "json"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return {package["name"].lower().replace("_", "-") for package in json.loads(listed.stdout)}


def run(programs: Path, *command: str, status: int = 0, cwd: Path | None = None) -> str:
    """Run a program of the environment outside the working tree; return what it printed."""
    done = subprocess.run(
        [str(programs / command[0]), *command[1:]],
        capture_output=True, text=True, timeout=300, check=False, cwd=cwd or programs,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_a_client_alone(environment: Callable[[str], Path]) -> None:
    programs = environment("")
    assert not installed(programs) & set(HEAVY)
    with cache_server() as server:
        code = f"import kvboost; c = kvboost.CacheClient({server.address!r}); print(c.stats().stored_bytes); c.close()"
        assert run(programs, "python", "-c", code).split() == ["0"]
        assert "stored 0 B" in run(programs, "kvboost", "stats", server.address)
    told = run(programs, "python", "-c", "from kvboost import boost", status=1)
    assert "kvboost.boost needs the runtime extra: pip install 'kvboost-chunks[runtime]'" in told
    told = run(programs, "kvboost", "serve-cache", status=2)
    assert told == "kvboost: kvboost serve-cache needs the cache extra: pip install 'kvboost-chunks[cache]'\n"


def test_a_gateway(environment: Callable[[str], Path]) -> None:
    programs = environment("gateway")
    assert not installed(programs) & (set(HEAVY) - {"fastapi", "uvicorn"})
    assert "--runtime" in run(programs, "kvboost", "serve-gateway", "--help")
    process = subprocess.Popen(
        [str(programs / "kvboost"), "serve-gateway", "--address", "127.0.0.1:0", "--runtime", "127.0.0.1:1"],
        stdout=subprocess.PIPE, text=True, cwd=programs,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
    finally:
        process.kill()
        process.communicate()


def test_a_cache(environment: Callable[[str], Path]) -> None:
    programs = environment("cache")
    assert not installed(programs) & {"fastapi", "uvicorn", "nltk", "gguf"}
    assert "--embedder" in run(programs, "kvboost", "serve-cache", "--help")
    process = subprocess.Popen(
        [str(programs / "kvboost"), "serve-cache", "--address", "127.0.0.1:0", "--embedder", "none"],
        stdout=subprocess.PIPE, text=True, cwd=programs,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), line
        code = f"import kvboost; c = kvboost.CacheClient({line.split()[2]!r}); print(c.stats().stored_bytes); c.close()"
        assert run(programs, "python", "-c", code).split() == ["0"]
    finally:
        process.kill()
        process.communicate()


BOOSTED = """
import sys
import kvboost
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
text = " ".join(f"The light of day {i} came in." for i in range(40))
inputs = tokenizer(text, return_tensors="pt")
plain = model.generate(**inputs, max_new_tokens=4, do_sample=False)
kvboost.boost(model, tokenizer, kvboost.LocalCache(1 << 26, None), policy=kvboost.ReusePolicy(tiers=("prefix",)))
for _ in range(2):
    assert model.generate(**inputs, max_new_tokens=4, do_sample=False).equal(plain)
    kvboost.engine_of(model).writer.flush()
print(model.last_reuse.reused_tokens)
"""


def test_a_runtime(environment: Callable[[str], Path], tmp_path: Path) -> None:
    programs = environment("runtime")
    assert not installed(programs) & {"fastapi", "uvicorn", "prometheus-client", "gguf"}
    tiny_model("llama", max_position_embeddings=2048).save_pretrained(tmp_path / "tiny")
    tiny_tokenizer(model_max_length=2048).save_pretrained(tmp_path / "tiny")
    assert int(run(programs, "python", "-W", "ignore", "-c", BOOSTED, str(tmp_path / "tiny")).split()[0]) > 100
    assert "--model" in run(programs, "kvboost", "serve-runtime", "--help")
    told = run(programs, "kvboost", "demo", status=2)
    assert told == "kvboost: kvboost demo needs the demo extra: pip install 'kvboost-chunks[demo]'\n"
    told = run(programs, "kvboost", "serve-gateway", "--runtime", "127.0.0.1:1", status=2)
    assert told == "kvboost: kvboost serve-gateway needs the gateway extra: pip install 'kvboost-chunks[gateway]'\n"
