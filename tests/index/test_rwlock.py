"""The reader-writer lock."""

from __future__ import annotations

import threading

import pytest

from kvboost.index.rwlock import ReadWriteLock


def test_readers_share_and_a_writer_waits_for_them() -> None:
    lock = ReadWriteLock()
    both = threading.Barrier(2, timeout=10)
    wrote = threading.Event()

    def read() -> None:
        with lock.read():
            both.wait()
            assert not wrote.is_set()
            both.wait()

    def write() -> None:
        with lock.write():
            wrote.set()

    reader = threading.Thread(target=read)
    reader.start()
    with lock.read():
        both.wait()
        writer = threading.Thread(target=write)
        writer.start()
        both.wait()
        assert not wrote.is_set()
    assert wrote.wait(10)
    reader.join()
    writer.join()


def test_writers_exclude_each_other() -> None:
    lock = ReadWriteLock()
    total = 0

    def add() -> None:
        nonlocal total
        for _ in range(200):
            with lock.write():
                before = total
                threading.Event().wait(0)
                total = before + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == 800


def test_an_error_inside_releases_the_lock() -> None:
    lock = ReadWriteLock()
    for hold in (lock.read, lock.write):
        with pytest.raises(KeyError), hold():
            raise KeyError
    with lock.write():
        pass
