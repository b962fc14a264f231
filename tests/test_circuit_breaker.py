"""A cache that stops answering is left alone, asked in the background, and used again by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

import kvboost.circuit_breaker as breaker_module
from kvboost.circuit_breaker import CircuitBreaker, fault_of, guarded
from kvboost.errors import CacheUnavailableError, LayoutMismatchError
from kvboost.index import LocalCache
from kvboost.protocols import PartSource
from kvboost.types import CacheInfo, ChunkKV, ChunkPart, MatchQuery, MatchResult, Namespace
from tests.contracts.chunks import ask, namespace, words

TIMEOUT_S = 60
NS = namespace()
QUERY = ask(NS.key, [words("a")])


class Clock:
    """Time that passes only where a call says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Sick(LocalCache):
    """A cache whose calls fail after ``takes_s`` while it is ill; probes wait until they are let go."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(1 << 20)
        self.ill, self.takes_s = False, 10.0
        self.calls = 0
        self.probes = threading.Semaphore(0)
        self.probed = threading.Semaphore(0)
        self.asking = self.most_asking = 0
        self._clock = clock
        self.answer: Exception | None = None

    def match(self, query: MatchQuery) -> MatchResult:
        self.calls += 1
        self._fail()
        return super().match(query)

    def open(self, namespace: Namespace) -> CacheInfo:
        if threading.current_thread().name == "kvboost-probe":
            self.asking += 1
            self.most_asking = max(self.asking, self.most_asking)
            self.probes.acquire(timeout=TIMEOUT_S)
            self.asking -= 1
            self.probed.release()
            if self.answer is not None:
                raise self.answer
        self._fail()
        return super().open(namespace)

    def _fail(self) -> None:
        if self.ill:
            self._clock.now_s += self.takes_s
            raise CacheUnavailableError("the server did not answer before the deadline")


@pytest.fixture
def sick(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Sick, CircuitBreaker, list[str]]]:
    clock, counted = Clock(), []  # type: ignore[var-annotated]
    monkeypatch.setattr(breaker_module, "time", clock)
    monkeypatch.setattr(breaker_module, "FIRST_PROBE_S", 0.001)
    monkeypatch.setattr(breaker_module, "MOST_PROBE_S", 0.002)
    cache = Sick(clock)
    guard = guarded(cache, counted.append)
    guard.open(NS)
    yield cache, guard, counted
    cache.ill = False
    guard.close()
    cache.probes.release(100)


def wait_until_closed(guard: CircuitBreaker) -> None:
    for _ in range(TIMEOUT_S * 100):
        if not fault_of(guard):
            return
        threading.Event().wait(0.01)
    pytest.fail("the circuit stays open")


def refused(guard: CircuitBreaker) -> None:
    with pytest.raises(CacheUnavailableError):
        guard.match(QUERY)


def test_one_time_out_and_no_further_call_until_a_probe_is_answered(
    sick: tuple[Sick, CircuitBreaker, list[str]],
) -> None:
    cache, guard, counted = sick
    cache.ill = True
    for _ in range(5):
        refused(guard)
    assert cache.calls == 1
    assert "did not answer" in fault_of(guard)
    assert counted == ["cache_circuit_opened", *["cache_calls_spared"] * 4]
    for _ in range(3):  # probes that fail leave it open, one at a time
        cache.probes.release()
        assert cache.probed.acquire(timeout=TIMEOUT_S)
        assert fault_of(guard)
    assert cache.most_asking == 1
    cache.ill = False
    cache.probes.release()
    wait_until_closed(guard)
    assert guard.match(QUERY).matches == ()
    assert cache.calls == 2


def test_calls_that_are_refused_quickly_leave_it_closed(sick: tuple[Sick, CircuitBreaker, list[str]]) -> None:
    cache, guard, counted = sick
    cache.ill, cache.takes_s = True, 0.01
    for _ in range(3):
        refused(guard)
    assert cache.calls == 3
    assert counted == []
    cache.takes_s = 0.2  # but not once they have cost as much as one that hangs
    refused(guard)
    refused(guard)
    refused(guard)
    assert cache.calls == 5


def test_a_cache_that_answers_a_probe_with_an_error_is_back(sick: tuple[Sick, CircuitBreaker, list[str]]) -> None:
    cache, guard, _ = sick
    cache.ill = True
    refused(guard)
    cache.ill, cache.answer = False, LayoutMismatchError("known with another layout")
    cache.probes.release()
    wait_until_closed(guard)


def test_a_stream_that_stops_opens_it_and_the_readers_own_time_does_not(
    sick: tuple[Sick, CircuitBreaker, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, guard, _ = sick

    def two(namespace: str, chunk_ids: Sequence[int]) -> Iterator[int]:
        yield 1
        yield 2
        raise CacheUnavailableError("gone")

    monkeypatch.setattr(cache, "fetch", two)
    seen: list[ChunkKV] = []

    def read() -> None:
        for chunk in guard.fetch(NS.key, [1]):
            seen.append(chunk)
            cache._clock.now_s += 100.0

    with pytest.raises(CacheUnavailableError, match="gone"):
        read()
    assert seen == [1, 2]
    assert not fault_of(guard)
    cache.ill = True
    refused(guard)
    with pytest.raises(CacheUnavailableError, match="left alone"):
        next(guard.fetch(NS.key, [1]))


def test_a_breaker_sends_parts_where_its_cache_does() -> None:
    class Parts(LocalCache):
        def fetch_parts(self, namespace: str, chunk_ids: Sequence[int], parts: int) -> Iterator[ChunkPart]:
            return iter(())

    assert not isinstance(guarded(LocalCache(1 << 20)), PartSource)
    source = guarded(Parts(1 << 20))
    assert isinstance(source, PartSource)
    assert list(source.fetch_parts(NS.key, [], 1)) == []


def test_a_cache_that_is_the_callers_stays_open() -> None:
    own, foreign = LocalCache(1 << 20), LocalCache(1 << 20)
    guarded(own).close()
    guarded(foreign, owns=False).close()
    foreign.stats()
    with pytest.raises(CacheUnavailableError):
        own.stats()
