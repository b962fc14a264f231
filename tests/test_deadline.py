"""One budget of time over several calls."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import pytest

from kvboost.client import CacheClient
from kvboost.deadline import remaining_s, within
from kvboost.errors import CacheUnavailableError, InputError
from kvboost.index import LocalCache
from kvboost.services.cache_server import SERVICE_NAME, CacheServicer
from kvboost.services.grpc_server import start_server
from kvboost.types import CacheInfo, MatchQuery, MatchResult
from kvboost.wire.address import parse_address
from tests.contracts.chunks import ask, namespace, words

HANG_S = 20
NS = namespace()


class Hung(LocalCache):
    """A cache that does not answer before it is let go."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.go = threading.Event()

    def match(self, query: MatchQuery) -> MatchResult:
        self.go.wait(HANG_S)
        return MatchResult()


@pytest.fixture
def hung() -> Iterator[str]:
    """The address of a server whose look-ups hang."""
    cache = Hung()
    servicer = CacheServicer(cache, CacheInfo("test", 1 << 20, "", 1))
    server = start_server(servicer.register, [SERVICE_NAME], [parse_address("127.0.0.1:0")])
    yield str(server.addresses[0])
    cache.go.set()
    server.stop(0)


def test_the_earlier_end_holds_and_comes_back() -> None:
    assert remaining_s() == math.inf
    with within(1000):
        with within(5000):
            assert 900 < remaining_s() <= 1000
        with within(10):
            assert remaining_s() <= 10
        assert remaining_s() > 900
        with within(0):
            assert remaining_s() == 0
    assert remaining_s() == math.inf


@pytest.mark.parametrize("budget_s", [-1, math.nan])
def test_a_budget_is_a_time(budget_s: float) -> None:
    with pytest.raises(InputError, match="budget_s"), within(budget_s):
        pass


def test_calls_share_what_is_left_and_the_last_ones_do_not_start(hung: str) -> None:
    client = CacheClient(hung, timeout_s=600, match_timeout_s=600, fetch_timeout_s=600)
    client.open(NS)
    began_s = time.monotonic()
    with within(0.3):
        with pytest.raises(CacheUnavailableError, match="deadline"):
            client.match(ask(NS.key, [words("a")]))
        with pytest.raises(CacheUnavailableError, match="no time left"):
            client.match(ask(NS.key, [words("a")]))
        with pytest.raises(CacheUnavailableError, match="no time left"):
            list(client.fetch(NS.key, [1]))
        with pytest.raises(CacheUnavailableError, match="no time left"):
            client.stats()
    assert time.monotonic() - began_s < HANG_S
    client.close()


def test_a_thread_of_its_own_has_no_deadline() -> None:
    seen: list[float] = []
    with within(1):
        thread = threading.Thread(target=lambda: seen.append(remaining_s()))
        thread.start()
        thread.join()
    assert seen == [math.inf]
