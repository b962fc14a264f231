"""A cache process that is stopped, and goes on: one request loses time, and reuse comes back by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvboost.api import engine_of
from kvboost.circuit_breaker import fault_of
from kvboost.client import CacheClient
from kvboost.config import ClientConfig, Config, EmbedderConfig
from kvboost.runtime.batching import Batch
from tests.boosting import GREEDY, boosted, document, prompt
from tests.runtime.batching.listeners import Heard, ask
from tests.servers import RunningServer, cache_server
from tests.tiny_models import tiny_model

DEADLINE_S = 4.0
HANG_S = 120.0

pytestmark = pytest.mark.filterwarnings("ignore::kvboost.errors.FallbackWarning")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with cache_server(f"unix:{tmp_path}/cache.sock") as running:
        try:
            yield running
        finally:
            running.process.send_signal(signal.SIGCONT)


@pytest.fixture
def client(server: RunningServer) -> Iterator[CacheClient]:
    client = CacheClient(
        server.address, timeout_s=2.0, match_timeout_s=DEADLINE_S, fetch_timeout_s=DEADLINE_S, put_timeout_s=DEADLINE_S
    )
    yield client
    client.close()


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_one_request_waits_and_reuse_comes_back(server: RunningServer, client: CacheClient) -> None:
    with boosted("llama", client) as model:
        engine = engine_of(model)
        model.generate(prompt(document(1)), **GREEDY)
        engine.writer.flush()
        os.kill(server.process.pid, signal.SIGSTOP)
        model.generate(prompt(document(2)), **GREEDY)
        assert "did not answer" in model.last_reuse.fallback
        assert fault_of(engine.cache)
        for seed in range(3, 6):
            model.generate(prompt(document(seed)), **GREEDY)
            assert "left alone" in model.last_reuse.fallback
            assert sum(model.last_reuse.stages_s.values()) < DEADLINE_S / 2  # it takes what it takes here, but no call
        counts = engine.counters.snapshot()
        assert counts["cache_circuit_opened"] == 1
        assert counts["cache_calls_spared"] == 3
        assert counts["puts_dropped"] == 4  # none of them waits for the cache
        os.kill(server.process.pid, signal.SIGCONT)
        until(lambda: not fault_of(engine.cache))
        model.generate(prompt(document(1)), **GREEDY)
        assert model.last_reuse.fallback is None
        assert model.last_reuse.reused_tokens > 0


def test_a_requests_waiting_together_ends_at_its_own_deadline(server: RunningServer) -> None:
    """However long each call may take: also where a put of the request before it hangs first."""
    patient = CacheClient(server.address, timeout_s=2.0, match_timeout_s=HANG_S * 5, put_timeout_s=HANG_S * 5)
    config = Config(client=ClientConfig(request_timeout_s=2.0), embedder=EmbedderConfig(model="none"))
    with closing(patient), boosted("llama", patient, config=config) as model:
        os.kill(server.process.pid, signal.SIGSTOP)
        started_s = time.monotonic()
        for seed in (1, 2):
            model.generate(prompt(document(seed)), **GREEDY)
            assert model.last_reuse.fallback
        assert time.monotonic() - started_s < HANG_S
        os.kill(server.process.pid, signal.SIGCONT)


def test_a_batch_goes_on_while_the_cache_hangs(server: RunningServer, client: CacheClient) -> None:
    model: Any = tiny_model("llama")
    model.generation_config.eos_token_id = None
    with boosted(model=model, cache=client):
        batch = Batch(engine_of(model))
        try:
            os.kill(server.process.pid, signal.SIGSTOP)
            heard = [ask(batch, prompt(document(i))[0].tolist(), 4, heard=Heard()) for i in range(6)]
            assert all(len(each.answer()) == 4 for each in heard)
            assert all(each.report().fallback for each in heard)
            assert len(ask(batch, prompt(document(9))[0].tolist(), 4).answer()) == 4
            assert batch.budget.taken == batch.state().running == 0
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
            batch.close()
