"""Verdicts of the start-up gate go to a directory of the test run, not to the user's."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_verdicts(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("verdicts")
        patch.setattr("kvboost.runtime.gate.default_cache_dir", lambda: folder)
        yield
