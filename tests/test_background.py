"""Threads in the background compute alone, and leave the number of torch's threads to others as it was."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kvboost.background import compute_alone, give_way
from kvboost.index import LocalCache
from kvboost.index.worker import EmbeddingWorker
from kvboost.runtime.control.counters import ReuseCounters
from kvboost.runtime.serve.writer import Writer
from kvboost.types import PutRequest


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("begin", [compute_alone, give_way])
def test_threads_that_begin_so_compute_alone_and_no_others(begin):
    together = threading.Barrier(4)

    def seen() -> int:
        together.wait()
        return torch.get_num_threads()

    with ThreadPoolExecutor(4, initializer=begin) as pool:
        assert [job.result() for job in [pool.submit(seen) for _ in range(4)]] == [1] * 4
    assert torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == 2


def test_what_is_stored_is_cut_out_on_one_thread():
    seen: list[int] = []

    def build() -> PutRequest:
        seen.append(torch.get_num_threads())
        return PutRequest("none", (1,), ())

    cache = LocalCache(1 << 20)
    writer = Writer(cache, ReuseCounters())
    writer.submit(build)
    writer.close()
    cache.close()
    assert seen == [1]
    assert torch.get_num_threads() == 2


def test_chunks_are_embedded_on_one_thread():
    seen: list[int] = []
    worker: EmbeddingWorker[int] = EmbeddingWorker(lambda keys, texts: seen.append(torch.get_num_threads()), 4, 4)
    worker.submit(1, "a text")
    assert worker.flush(10.0)
    worker.close()
    assert seen == [1]
    assert torch.get_num_threads() == 2
