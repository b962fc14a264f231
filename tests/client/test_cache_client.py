"""What the client does by itself, with no server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvboost.client import CacheClient
from kvboost.errors import CacheUnavailableError, ConfigError, InputError
from kvboost.wire.address import Address, parse_address


def test_importing_the_client_imports_no_heavy_library():
    script = (
        "import sys, kvboost.client, kvboost.wire.convert\n"
        "print(*{'torch', 'faiss', 'transformers', 'sentence_transformers', 'nltk'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7461", Address("127.0.0.1", 7461)),
        ("cache.example:1", Address("cache.example", 1)),
        ("[::1]:7461", Address("[::1]", 7461)),
        ("unix:/run/x.sock", Address(path="/run/x.sock")),
        ("unix:///run/x.sock", Address(path="/run/x.sock")),
        ("unix:x.sock", Address(path="x.sock")),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", "localhost", ":7461", "host:", "host:x", "host:70000", "::1:7461", "unix:", f"unix:/{'x' * 120}"]
)
def test_bad_addresses(text):
    with pytest.raises(ConfigError, match="address"):
        CacheClient(text)


@pytest.mark.parametrize("name", ["timeout_s", "match_timeout_s", "fetch_timeout_s", "put_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_deadline_must_be_positive(name, value):
    with pytest.raises(InputError, match=name):
        CacheClient("127.0.0.1:1", **{name: value})


def test_no_server_is_unavailable(tmp_path):
    client = CacheClient(f"unix:{tmp_path}/none.sock")
    with pytest.raises(CacheUnavailableError, match=r"none\.sock"):
        client.stats()
    with pytest.raises(CacheUnavailableError):
        list(client.fetch("n", [1]))


def test_a_closed_client_is_unavailable():
    client = CacheClient("127.0.0.1:1")
    client.close()
    client.close()
    with pytest.raises(CacheUnavailableError, match="closed"):
        client.stats()
    with pytest.raises(CacheUnavailableError, match="closed"):
        list(client.fetch("n", [1]))
