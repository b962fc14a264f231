"""Settings of the whole test run.

Verdicts of the start-up gate and calibrations go to a directory of the run, not to the user's. torch takes one thread
in this process: two of them spend their time waiting for each other on tiny models (three times as long). Processes
that tests start take one too, since the tests themselves run on as many processes as there are cores.

Files that start many processes, or run the real model, begin first: several workers then end at about the same time.
"""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

LONG = ("tests/e2e/", "tests/docs/", "tests/evals/", "tests/services/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files by how long they take, roughly; the order within a file stays."""
    items.sort(key=lambda item: next((i for i, folder in enumerate(LONG) if item.nodeid.startswith(folder)), len(LONG)))


@pytest.fixture(scope="session", autouse=True)
def _own_verdicts(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("verdicts")
        for room in ("prepare.startup_check", "cost.calibrate", "tools.checkup"):
            patch.setattr(f"kvboost.runtime.{room}.default_cache_dir", lambda: folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
