"""The cache service in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kvboost.client import CacheClient
from kvboost.errors import CacheUnavailableError, TruncatedStreamError, UnknownNamespaceError
from kvboost.types import KVLayout, NewChunk, PutReceipt, PutRequest, Span
from tests.contracts.chunks import ask, finite, namespace, offer, shape, words
from tests.servers import RunningServer, cache_server

NS = namespace()
KEY = NS.key
A, B, C = words("a"), words("b"), words("c")

# 32 tokens are 40 MiB, ten times gRPC's limit for one message.
LARGE = namespace(layout=KVLayout(80, 8, 512, 512, "float16"))
LARGE_BYTES = 32 * LARGE.layout.token_bytes


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with cache_server() as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[CacheClient]:
    client = CacheClient(server.address)
    yield client
    client.drop(KEY)
    client.close()


def put_large(client: CacheClient, count: int) -> list[int]:
    """Store ``count`` chunks of 40 MiB; return their ids."""
    client.open(LARGE)
    docs = [words(f"l{i}", 32) for i in range(count)]
    payload = finite(os.urandom(LARGE_BYTES))
    tokens = tuple(t for doc in docs for t in doc)
    chunks = tuple(NewChunk(Span(32 * i, 32 * i + 32), "large", True, payload) for i in range(count))
    assert client.put(PutRequest(LARGE.key, tokens, chunks)) == PutReceipt(stored=count)
    return [m.donor.chunk_id for m in client.match(ask(LARGE.key, docs)).matches]


def test_two_clients_share_chunks(server: RunningServer, client: CacheClient) -> None:
    client.open(NS)
    client.put(offer(KEY, [A, B]))
    other = CacheClient(server.address)
    other.open(NS)
    matches = other.match(ask(KEY, [C, B, A])).matches
    assert shape(matches) == [("exact", 16, 32), ("exact", 32, 48)]
    assert len(list(other.fetch(KEY, [m.donor.chunk_id for m in matches]))) == 2
    other.close()


def test_a_chunk_of_ten_times_the_message_limit_goes_both_ways(tmp_path: Path) -> None:
    for address in (f"unix:{tmp_path}/cache.sock", "127.0.0.1:0"):
        with cache_server(address) as server:
            client = CacheClient(server.address)
            (chunk_id,) = put_large(client, 1)
            (kv,) = list(client.fetch(LARGE.key, [chunk_id]))
            assert kv.verified().nbytes == LARGE_BYTES == 40 << 20
            client.close()


def test_kill_in_the_middle_of_a_fetch_is_noticed() -> None:
    with cache_server() as server:
        client = CacheClient(server.address, shared_memory=False)
        stream = client.fetch(LARGE.key, put_large(client, 3))
        next(stream).verified()
        server.kill()
        with pytest.raises((CacheUnavailableError, TruncatedStreamError)):
            list(stream)
        with pytest.raises(CacheUnavailableError):
            client.stats()
        client.close()


def test_a_client_finds_a_restarted_server_and_announces_its_namespace(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/cache.sock"
    with cache_server(address) as first:
        client = CacheClient(address)
        client.open(NS)
        client.put(offer(KEY, [A]))
        (match,) = client.match(ask(KEY, [A])).matches
        first.kill()
    with pytest.raises(CacheUnavailableError):
        client.match(ask(KEY, [A]))
    # The dead server left its socket file behind; the new one takes the place over.
    with cache_server(address):
        answer = until_available(lambda: client.match(ask(KEY, [A])))
        assert answer.matches == ()
        assert list(client.fetch(KEY, [match.donor.chunk_id])) == []
        assert client.put(offer(KEY, [A])) == PutReceipt(stored=1)
    client.close()


def until_available(call):
    """Repeat ``call`` while the client still waits before its next attempt to connect."""
    for _ in range(2000):
        try:
            return call()
        except CacheUnavailableError:
            time.sleep(0.01)
    return call()


def test_a_namespace_that_this_client_did_not_open_stays_unknown(client: CacheClient) -> None:
    with pytest.raises(UnknownNamespaceError):
        client.match(ask(namespace(tenant="never opened").key, [A]))


def test_health_and_reflection_answer(server: RunningServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        for name in ("", "kvboost.v1.CacheService"):
            answer = check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            check(health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        ask_info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = list(ask_info(iter([request]), timeout=10))
        names = {service.name for service in answer.list_services_response.service}
        assert {"kvboost.v1.CacheService", "grpc.health.v1.Health"} <= names
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="kvboost.v1.CacheService")
        (answer,) = list(ask_info(iter([request]), timeout=10))
        assert answer.file_descriptor_response.file_descriptor_proto


def test_tcp_and_unix_socket_serve_the_same_cache(tmp_path: Path) -> None:
    path = tmp_path / "both.sock"
    with cache_server("127.0.0.1:0", "--unix", str(path)) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        tcp, unix = CacheClient(server.address), CacheClient(f"unix:{path}")
        tcp.open(NS)
        tcp.put(offer(KEY, [A]))
        assert len(unix.match(ask(KEY, [A])).matches) == 1
        tcp.close()
        unix.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_removes_the_socket(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "cache.sock"
    with cache_server(f"unix:{path}") as server:
        assert path.exists()
        server.process.send_signal(number)
        assert server.process.wait(timeout=60) == 0
        assert not path.exists()


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "kvboost.services.cli", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_an_address_in_use_is_refused_in_one_sentence(server: RunningServer, tmp_path: Path) -> None:
    second = run_cli("serve-cache", "--address", server.address, "--embedder", "none")
    assert second.returncode == 2
    assert server.address in second.stderr
    assert "Traceback" not in second.stderr
    with cache_server(f"unix:{tmp_path}/x.sock") as first:
        second = run_cli("serve-cache", "--no-tcp", "--unix", f"{tmp_path}/x.sock", "--embedder", "none")
        assert second.returncode == 2
        assert "x.sock" in second.stderr
        assert CacheClient(first.address).stats().stored_bytes == 0


def test_a_file_in_the_sockets_place_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "precious.txt"
    path.write_text("mine")
    refused = run_cli("serve-cache", "--no-tcp", "--unix", str(path), "--embedder", "none")
    assert refused.returncode == 2
    assert path.read_text() == "mine"


def test_nowhere_to_listen_is_refused() -> None:
    refused = run_cli("serve-cache", "--no-tcp", "--embedder", "none")
    assert refused.returncode == 2
    assert "--unix" in refused.stderr


def test_stats_command(server: RunningServer, client: CacheClient) -> None:
    client.open(NS)
    client.put(offer(KEY, [A, B]))
    client.match(ask(KEY, [A, C]))
    shown = json.loads(run_cli("stats", server.address, "--json").stdout)
    (figures,) = [n for n in shown["namespaces"] if n["namespace"] == KEY]
    assert (figures["chunks"], figures["query_tokens"], figures["hit_tokens"]["prefix"]) == (2, 32, 16)
    text = run_cli("stats", server.address).stdout
    assert KEY in text
    assert "50.0% prefix" in text


def test_stats_of_no_server_is_one_sentence(tmp_path: Path) -> None:
    shown = run_cli("stats", f"unix:{tmp_path}/none.sock")
    assert shown.returncode == 2
    assert "none.sock" in shown.stderr
    assert "Traceback" not in shown.stderr
