"""Several runtimes on one cache server, each in a process of its own, and what happens when the cache dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvboost.client import CacheClient, RuntimeClient
from kvboost.client.runtime_types import Finish
from kvboost.sampling import GREEDY
from kvboost.types import Handover, Tier
from tests.boosting import document
from tests.proxy import CuttingProxy
from tests.servers import RunningServer, cache_server, runtime_server, together
from tests.tiny_models import tiny_model, tiny_tokenizer

PATIENCE_S = 60.0
FETCH_BYTES = 40_000  # more than look-ups say, less than the K/V of any prompt here


@dataclass
class Cluster:
    """One cache server, restarted at will, and runtimes on it: ``a`` through a proxy and without shared memory, ``b``
    directly and with it, and ``other`` with another model."""

    stack: ExitStack
    cache: RunningServer
    proxy: CuttingProxy
    runtimes: list[RunningServer] = field(default_factory=list)
    clients: list[RuntimeClient] = field(default_factory=list)

    @property
    def a(self) -> RuntimeClient:
        return self.clients[0]

    @property
    def b(self) -> RuntimeClient:
        return self.clients[1]

    @property
    def other(self) -> RuntimeClient:
        return self.clients[2]

    def restart_cache(self) -> None:
        self.cache = self.stack.enter_context(cache_server(self.cache.address))

    def stored_chunks(self, client: RuntimeClient) -> int:
        cache = CacheClient(self.cache.address)
        try:
            key = client.describe().namespace.key
            return next(n.chunks for n in cache.stats().namespaces if n.namespace == key)
        finally:
            cache.close()


def save(folder: Path, seed: int) -> Path:
    tiny_model("llama", seed=seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("models")
    one, two = save(folder / "one", 0), save(folder / "two", 1)
    frames = folder / "frames.toml"
    frames.write_text("[client]\nshared_memory = false\n")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))  # what the start-up gate finds is not the user's
        patch.setenv("KVBOOST_POLICY__WORTH_IT", "false")  # the prefill of a tiny model costs less than most fetches
        cache = stack.enter_context(cache_server())
        proxy = CuttingProxy(cache.address)
        stack.callback(proxy.close)
        cluster = Cluster(stack, cache, proxy)
        cluster.runtimes = stack.enter_context(
            together(
                runtime_server(proxy.address, one, "--config", str(frames)),
                runtime_server(cache.address, one),
                runtime_server(cache.address, two),
            )
        )
        cluster.clients = [RuntimeClient(runtime.address) for runtime in cluster.runtimes]
        for client in cluster.clients:
            stack.callback(client.close)
        yield cluster


@pytest.fixture(autouse=True)
def _cache_is_up(cluster: Cluster) -> None:
    if cluster.cache.process.poll() is not None:
        cluster.restart_cache()


def until(done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < end_s, "did not happen"
        time.sleep(0.1)


def store(client: RuntimeClient, prompt: str) -> None:
    """Have ``prompt`` stored; a runtime may take a moment to see that its cache is back."""
    until(lambda: client.answer(prompt, max_new_tokens=4, sampling=GREEDY, wait_for_store=True).report.fallback is None)


def test_what_one_runtime_stored_the_first_request_of_another_reuses(cluster: Cluster) -> None:
    one, two, three = document(1), document(2), document(3)
    store(cluster.a, f"{one}\n\n{two}")
    assert cluster.b.describe().counters.get("requests", 0) == 0
    first = cluster.b.answer(f"{one}\n\n{three}\n\n{two}\n\nWhat next?", max_new_tokens=8, sampling=GREEDY).report
    assert first.tokens_by_tier[Tier.PREFIX] > 30
    assert first.tokens_by_tier[Tier.EXACT] > 30
    assert first.fallback is None
    assert first.handover is Handover.SHARED_MEMORY


def test_what_another_runtime_computed_serves_the_prefix_tier_without_loss(cluster: Cluster) -> None:
    prompt = f"{document(4)}\n\n{document(5)}"
    store(cluster.a, prompt)
    prompt += "\n\nWhat did they say?"
    reused = cluster.b.answer(prompt, max_new_tokens=24, sampling=GREEDY)
    plain = cluster.b.answer(prompt, max_new_tokens=24, sampling=GREEDY, skip_cache=True)
    report = reused.report
    assert report.tokens_by_tier[Tier.PREFIX] > 0.8 * report.prompt_tokens
    assert report.tokens_by_tier[Tier.PREFIX] + report.tokens_by_tier[Tier.COMPUTED] == report.prompt_tokens
    assert (reused.token_ids, reused.text) == (plain.token_ids, plain.text)


def test_another_model_never_reuses_though_its_tokens_are_the_same(cluster: Cluster) -> None:
    prompt = f"{document(6)}\n\n{document(7)}"
    store(cluster.a, prompt)
    assert cluster.b.answer(prompt, max_new_tokens=4).report.reused_tokens > 0
    answer = cluster.other.answer(prompt, max_new_tokens=16, sampling=GREEDY, wait_for_store=True)
    plain = cluster.other.answer(prompt, max_new_tokens=16, sampling=GREEDY, skip_cache=True)
    assert answer.report.reused_tokens == 0
    assert answer.report.fallback is None
    assert answer.token_ids == plain.token_ids
    assert cluster.other.describe().namespace.tokenizer == cluster.a.describe().namespace.tokenizer
    assert cluster.stored_chunks(cluster.other) > 0


def test_a_cache_killed_in_the_middle_of_a_request_costs_time_and_nothing_else(cluster: Cluster) -> None:
    prompt = f"{document(8)}\n\n{document(9)}"
    store(cluster.a, prompt)
    before = cluster.a.describe().counters
    cluster.proxy.cut_after(FETCH_BYTES, cluster.cache.kill)
    answer = cluster.a.answer(prompt, max_new_tokens=16, sampling=GREEDY, wait_for_store=True)
    assert cluster.proxy.was_cut.is_set()
    assert cluster.cache.process.poll() == -signal.SIGKILL
    report = answer.report
    assert "match" in report.stages_s  # it was there when the request began,
    assert "fetch" in report.stages_s  # and died while it handed K/V over
    assert report.fallback is not None
    assert "CacheUnavailableError" in report.fallback
    assert report.tokens_by_tier[Tier.COMPUTED] == report.prompt_tokens
    plain = cluster.a.answer(prompt, max_new_tokens=16, sampling=GREEDY, skip_cache=True)
    assert (answer.token_ids, answer.text) == (plain.token_ids, plain.text)
    after = cluster.a.describe().counters
    assert after["fallbacks"] == before.get("fallbacks", 0) + 1
    assert after["put_failures"] == before.get("put_failures", 0) + 1


def test_a_dead_cache_means_full_prefill_and_one_that_came_back_is_used_again(cluster: Cluster) -> None:
    prompt = f"{document(10)}\n\n{document(11)}"
    store(cluster.b, prompt)
    cluster.cache.kill()
    before = cluster.b.describe().counters
    dead = cluster.b.answer(prompt, max_new_tokens=16, sampling=GREEDY, wait_for_store=True)
    plain = cluster.b.answer(prompt, max_new_tokens=16, sampling=GREEDY, skip_cache=True)
    assert dead.report.fallback is not None
    assert dead.report.reused_tokens == 0
    assert dead.token_ids == plain.token_ids
    assert cluster.b.describe().counters["fallbacks"] == before.get("fallbacks", 0) + 1

    cluster.restart_cache()  # empty, and it has never heard of the namespace
    store(cluster.b, prompt)
    again = cluster.b.answer(prompt, max_new_tokens=16, sampling=GREEDY)
    assert again.report.tokens_by_tier[Tier.PREFIX] > 0.8 * again.report.prompt_tokens
    assert again.token_ids == plain.token_ids


def test_sigterm_lets_an_answer_end_and_stores_what_it_computed(cluster: Cluster) -> None:
    store(cluster.other, document(12))
    stored = cluster.stored_chunks(cluster.other)
    namespace = cluster.other.describe().namespace.key
    events = cluster.other.generate(f"{document(13)}\n\n{document(14)}", max_new_tokens=32, sampling=GREEDY)
    next(events)
    process = cluster.runtimes[2].process
    process.send_signal(signal.SIGTERM)
    *_, finish = events
    assert isinstance(finish, Finish)
    assert process.wait(PATIENCE_S) == 0
    cache = CacheClient(cluster.cache.address)
    chunks = next(n.chunks for n in cache.stats().namespaces if n.namespace == namespace)
    cache.close()
    assert chunks > stored


def test_a_runtime_without_its_cache_does_not_start_and_says_why(tmp_path: Path) -> None:
    argv = ["serve-runtime", "--address", "127.0.0.1:0", "--cache", f"unix:{tmp_path}/none.sock"]
    done = subprocess.run(
        [sys.executable, "-m", "kvboost.services.cli", *argv], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert f"no cache server answers at unix:{tmp_path}/none.sock (cache.address)" in sentence
    assert done.stdout == ""
