"""``kvboost stats``: once, and as a live view."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvboost.client import CacheClient
from kvboost.services import cli
from kvboost.services.cache_figures import as_line, as_view, rates
from kvboost.types import CacheStats, NamespaceStats
from tests.contracts.chunks import ask, namespace, offer, words
from tests.servers import RunningServer, cache_server

NS = namespace()
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with cache_server() as running:
        yield running


@contextmanager
def watching(address: str, *arguments: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "kvboost.services.cli", "stats", address, "--watch", "0.1", *arguments]
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stop(process: subprocess.Popen[str]) -> None:
    """Press Ctrl-C, and see that it ends as if nothing were wrong."""
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def look_up(server: RunningServer, text: str) -> None:
    client = CacheClient(server.address)
    client.open(NS)
    client.put(offer(NS.key, [words(text)]))
    client.match(ask(NS.key, [words(text)]))
    client.close()


def test_watching_as_json_prints_a_line_each_time_with_what_happened_since(server: RunningServer) -> None:
    with watching(server.address, "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["rates"] is None
        look_up(server, "a")
        for line in process.stdout:
            happened = json.loads(line)["rates"]
            if happened["hit_tokens"]:
                break
        assert happened["queries"] > 0
        assert happened["hit_tokens"] == {"prefix": happened["query_tokens"]}
        stop(process)


def test_watching_without_a_terminal_prints_plain_lines(server: RunningServer) -> None:
    with watching(server.address) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("nothing to compare with yet\n")
        second = process.stdout.readline()
        assert "look-ups/s of" in second
        assert "\x1b" not in second
        stop(process)


def test_a_terminal_is_drawn_over_in_place(server: RunningServer) -> None:
    look_up(server, "b")
    ours, theirs = pty.openpty()
    with watching(server.address, stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        while shown.count(b"\x1b[J") < 2:
            shown += os.read(ours, 4096)
        stop(process)
    os.close(ours)
    assert NS.key.encode()[:20] in shown
    first, second, *_ = shown.decode().split("\x1b[J")
    lines = first.count("\n")
    assert first.endswith(f"\x1b[{lines}F")  # up over all that was drawn
    assert second.endswith(f"\x1b[{lines}F")


def test_a_cache_that_dies_is_told_and_waited_for() -> None:
    with cache_server() as running, watching(running.address, "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        running.kill()
        for line in process.stdout:
            if "error" in json.loads(line):
                break
        stop(process)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "often"])
def test_an_interval_that_is_none_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["stats", "127.0.0.1:1", f"--watch={seconds}"])
    assert caught.value.code == 2
    assert "--watch" in capsys.readouterr().err


def figures(uptime_s: float, queries: int, found: int, stored: int = 50) -> CacheStats:
    one = NamespaceStats("n", "", "tiny", 1, stored, 0, queries, queries * 10, {"prefix": found, "exact": 0}, 0)
    return CacheStats(100, stored, uptime_s, (one,))


def test_rates_are_per_second_and_by_tier() -> None:
    happened = rates(figures(10.0, 4, 20), figures(12.0, 8, 40, stored=48))
    assert happened is not None
    assert (happened.queries, happened.query_tokens, happened.hit_tokens) == (2.0, 20.0, {"prefix": 10.0})
    assert happened.stored_bytes == -1.0
    assert as_line(happened) == "2.0 look-ups/s of 20 tokens/s: 50.0% prefix; 0.0 evicted/s, -1 B/s"


def test_a_cache_that_started_anew_has_no_rates_and_a_new_namespace_counts_whole() -> None:
    assert rates(figures(10.0, 4, 20), figures(1.0, 1, 0)) is None
    happened = rates(CacheStats(100, 0, 1.0), figures(2.0, 3, 20))
    assert happened is not None
    assert happened.queries == 3.0
    dropped = rates(figures(1.0, 9, 90), figures(2.0, 3, 20))
    assert dropped is not None
    assert dropped.queries == 3.0


def test_the_bar_shows_the_share_of_memory() -> None:
    assert f"[{'#' * 15}{'.' * 15}]" in as_view(figures(1.0, 0, 0), None)
