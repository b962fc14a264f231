"""Memory for slabs is zeroed, writable and of the asked shape, whatever pages it is made of."""

import mmap

import pytest
import torch

from kvboost.runtime.memory import LARGE_BYTES, zeros


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [3, LARGE_BYTES // 2])
def test_zeros_are_those_of_torch(dtype, tokens):
    found = zeros((2, tokens), dtype, "cpu")
    assert torch.equal(found, torch.zeros(2, tokens, dtype=dtype))
    found[1, -1] = 1.0
    assert found.sum() == 1.0


def test_a_system_without_large_pages_serves_as_well(monkeypatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 0x7FFF)  # advice that no kernel knows: it answers with an error
    assert not zeros((LARGE_BYTES,), torch.float32, "cpu").any()
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert not zeros((LARGE_BYTES,), torch.float32, "cpu").any()


def test_the_memory_lives_as_long_as_a_view_of_it():
    view = zeros((4, LARGE_BYTES // 4), torch.float32, "cpu")[2:]
    view += 1.0
    assert view.min() == 1.0
