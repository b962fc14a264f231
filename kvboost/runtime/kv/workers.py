"""Threads for many small tensor operations.

torch shares every operation among its threads, and for small ones waking them costs more than they save: placing 136
chunks of 31 tokens took 98 ms with two threads and 48 ms with one. Here each operation runs on one thread, and several
of them at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

from kvboost.background import compute_alone

MOST = 4


class Hands:
    """As many threads as torch uses, four at most, each of which computes alone; none where torch uses one.

    The threads are started by the first use. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def run(self, jobs: Iterable[Callable[[], None]]) -> None:
        """Run every job, in any order, and return when all have ended.

        Raises
        ------
        Exception
            What the first job that failed raised; an error of ``jobs`` itself goes before.
        """
        pool = self._started()
        if pool is None:
            for job in jobs:
                job()
            return
        running = []
        try:
            for job in jobs:
                running.append(pool.submit(job))
        finally:
            errors = [future.exception() for future in running]
        for error in errors:
            if error is not None:
                raise error

    def begin(self, job: Callable[[], None]) -> None:
        """Run one job in the background; it must tell of its failures by itself."""
        pool = self._started()
        if pool is None:
            threading.Thread(target=job, name="kvboost-place", daemon=True).start()
        else:
            pool.submit(job)

    def close(self) -> None:
        """Stop the threads."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _started(self) -> ThreadPoolExecutor | None:
        threads = torch.get_num_threads()
        if threads == 1:
            return None
        with self._lock:
            if self._pool is None:
                count = min(threads, MOST)
                self._pool = ThreadPoolExecutor(count, "kvboost-place", initializer=compute_alone)
            return self._pool
