"""Numbers that are not finite are told from their bits, in each format and of either sign."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.index.finite import all_finite


def as_float32(bits: int, dtype: str) -> np.ndarray:
    """Return the number that ``bits`` stand for."""
    if dtype == "float16":
        return np.array([bits], np.uint16).view(np.float16).astype(np.float32)
    return np.array([bits << 16 if dtype == "bfloat16" else bits], np.uint32).view(np.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_number_of_16_bits_is_told_right(dtype: str) -> None:
    for bits in range(1 << 16):
        expected = bool(np.isfinite(as_float32(bits, dtype))[0])
        assert all_finite(bits.to_bytes(2, "little"), dtype) == expected, hex(bits)


@given(st.integers(0, (1 << 32) - 1) | st.sampled_from([0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7FC00000]))
def test_numbers_of_32_bits_are_told_right(bits: int) -> None:
    assert all_finite(bits.to_bytes(4, "little"), "float32") == bool(np.isfinite(as_float32(bits, "float32"))[0])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("place", [0, 517, 999])
def test_one_among_many_is_found(dtype: str, place: int) -> None:
    bad = {"float32": 0xFF800000, "float16": 0xFC00, "bfloat16": 0xFF80}[dtype]
    kind = np.uint32 if dtype == "float32" else np.uint16
    numbers = np.full(1000, 0x3C00, kind)
    assert all_finite(numbers.data, dtype)
    numbers[place] = bad
    assert not all_finite(memoryview(numbers.tobytes()), dtype)


def test_nothing_is_finite() -> None:
    assert all_finite(b"", "float32")
