"""Ordinary memory and the arena keep the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvboost.index.arena import Arena
from kvboost.index.payloads import PayloadAllocator, ProcessMemory
from tests.contracts.payload_allocator import PayloadAllocatorContract


class TestProcessMemory(PayloadAllocatorContract):
    @pytest.fixture
    def allocator(self) -> PayloadAllocator:
        return ProcessMemory()


class TestArena(PayloadAllocatorContract):
    @pytest.fixture
    def allocator(self, tmp_path: Path) -> Iterator[PayloadAllocator]:
        arena = Arena(4 << 20, tmp_path)
        yield arena
        arena.close()
