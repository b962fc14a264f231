"""What everything that gives out memory for payloads must do.

A suite for one implementation subclasses :class:`PayloadAllocatorContract` and provides ``allocator``.
"""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvboost.index.payloads import PayloadAllocator, copied_in

A, B = "a" * 32, "b" * 32


class PayloadAllocatorContract:
    """The suite; see the module's docstring."""

    @pytest.fixture
    def allocator(self) -> PayloadAllocator:
        raise NotImplementedError

    def test_memory_is_writable_aligned_and_as_long_as_asked(self, allocator: PayloadAllocator) -> None:
        for nbytes in (1, 63, 64, 65, 5000, 200_000):
            memory = allocator.allocate(A, nbytes)
            assert (memory.dtype, memory.shape) == (np.uint8, (nbytes,))
            assert memory.ctypes.data % 16 == 0
            memory[:] = 7
            assert memory.sum(dtype=int) == 7 * nbytes

    def test_what_is_held_is_never_given_to_another(self, allocator: PayloadAllocator) -> None:
        held: list[tuple[memoryview, int]] = []
        for number in range(400):
            memory = allocator.allocate((A, B)[number % 2], 1 + 37 * number % 3000)
            memory[:] = number % 251
            held.append((memory.data[len(memory) // 2 :], number % 251))
            if number % 3 == 0:
                del held[number % len(held)]
        assert all(set(view.tobytes()) == {value} for view, value in held)

    def test_a_view_of_a_view_keeps_the_memory(self, allocator: PayloadAllocator) -> None:
        payload = copied_in(allocator, A, b"x" * 3000, lambda: False)
        assert payload.readonly
        view = np.frombuffer(payload.cast("B")[100:200], dtype=np.uint8)[10:20]
        del payload
        gc.collect()
        for _ in range(50):
            allocator.allocate(A, 3000)[:] = 0
        assert bytes(view) == b"x" * 10

    def test_what_was_given_out_outlives_closing(self, allocator: PayloadAllocator) -> None:
        payload = copied_in(allocator, A, b"y" * 100_000, lambda: False)
        allocator.forget(A)
        allocator.close()
        allocator.close()
        assert bytes(payload) == b"y" * 100_000

    def test_threads_never_share_memory(self, allocator: PayloadAllocator) -> None:
        start = threading.Barrier(4)

        def work(worker: int) -> None:
            start.wait()
            held = []
            for number in range(200):
                memory = allocator.allocate(A, 100 + number)
                memory[:] = worker
                held.append(memory)
                if len(held) > 5:
                    held.pop(0)
                assert all((m == worker).all() for m in held)

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, w) for w in range(4)]:
                done.result()

    def test_only_its_own_memory_is_kept_without_a_copy(self, allocator: PayloadAllocator) -> None:
        for foreign in (b"z" * 100, np.frombuffer(b"z" * 100, np.uint8), bytearray(b"z" * 100)):
            kept = copied_in(allocator, A, foreign, lambda: False)
            assert bytes(kept) == b"z" * 100
            assert kept.obj is not foreign
        own = allocator.allocate(A, 100)
        own[:] = 3
        for namespace, payload in ((B, own.data.toreadonly()), (A, own.data), (A, own.data.toreadonly()[:50])):
            assert not np.shares_memory(copied_in(allocator, namespace, payload, lambda: False), own)
        kept = copied_in(allocator, A, own.data.toreadonly(), lambda: False)
        assert np.shares_memory(kept, own) == allocator.holds(A, own.data)

    def test_a_copy_is_exact(self, allocator: PayloadAllocator) -> None:
        data = os.urandom(70_001)
        assert bytes(copied_in(allocator, B, memoryview(data), lambda: False)) == data
