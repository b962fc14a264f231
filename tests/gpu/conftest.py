"""Which accelerators there are. Where there is none, every test here is skipped, and `make test-gpu` lists it."""

from __future__ import annotations

import pytest
import torch


def _devices() -> list[str]:
    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return found[:1] + (["mps"] if torch.backends.mps.is_available() else [])


@pytest.fixture(params=["cuda", "mps"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """An accelerator of each kind that is here."""
    found = next((name for name in _devices() if name.startswith(request.param)), None)
    if found is None:
        pytest.skip(f"untested here: no {request.param} device that torch can use")
    return torch.device(found)


@pytest.fixture
def cuda() -> torch.device:
    """The first CUDA device."""
    if not torch.cuda.is_available():
        pytest.skip("untested here: no cuda device that torch can use")
    return torch.device("cuda:0")


@pytest.fixture
def two_devices(cuda: torch.device) -> tuple[torch.device, torch.device]:
    """Two CUDA devices."""
    if torch.cuda.device_count() < 2:
        pytest.skip("untested here: one cuda device")
    return cuda, torch.device("cuda:1")
