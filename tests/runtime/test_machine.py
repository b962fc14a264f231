"""What a container leaves a process, read from control groups of both versions; threads from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from kvboost.runtime.model import machine
from kvboost.runtime.model.cgroup import cpu_quota, memory_left

MIB = 1 << 20


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def test_version_2_takes_the_strictest_group_on_the_way_up(tmp_path: Path, groups: Path) -> None:
    groups.write_text("0::/pod/container\n")
    mount = tmp_path / "mount"
    write(mount / "pod", memory__max=100 * MIB, memory__current=90 * MIB, cpu__max="150000 100000")
    write(mount / "pod/container", memory__max="max", memory__current=50 * MIB, cpu__max="max 100000")
    (mount / "pod/memory.stat").write_text(f"anon 5\ninactive_file {20 * MIB}\n")
    assert memory_left(mount, groups) == 30 * MIB
    assert cpu_quota(mount, groups) == 1.5


def test_version_1_reads_each_controller_where_it_is(tmp_path: Path, groups: Path) -> None:
    groups.write_text("9:name=systemd:/\n4:memory:/docker/c\n1:cpu,cpuacct:/docker/c\n0::/\n")
    mount = tmp_path / "mount"
    write(mount / "memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=MIB)
    write(mount / "memory/docker/c", memory__limit_in_bytes=64 * MIB, memory__usage_in_bytes=60 * MIB)
    write(mount / "cpu,cpuacct/docker/c", cpu__cfs_quota_us=200000, cpu__cfs_period_us=100000)
    assert memory_left(mount, groups) == 4 * MIB
    assert cpu_quota(mount, groups) == 2.0


def test_a_container_that_sees_its_own_group_as_the_root(tmp_path: Path, groups: Path) -> None:
    groups.write_text("0::/kubepods/of/the/host\n")
    mount = tmp_path / "mount"
    write(mount, memory__max=8 * MIB, memory__current=9 * MIB, cpu__max="50000 100000")
    assert memory_left(mount, groups) == 0
    assert cpu_quota(mount, groups) == 0.5


def test_without_limits_or_groups_nothing_is_limited(tmp_path: Path, groups: Path) -> None:
    assert memory_left(tmp_path / "none", groups) is None
    groups.write_text("1:cpu:/\n0::/\n")
    write(tmp_path / "mount/cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert cpu_quota(tmp_path / "mount", groups) is None
    assert memory_left(tmp_path / "mount", groups) is None


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


@pytest.mark.parametrize(("quota", "expected"), [(0.5, 1), (1.5, 1), (2.0, 2), (64.0, 3), (None, 3)])
def test_threads_come_from_affinity_and_quota(
    quota: float | None, expected: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    machine.set_threads(0)
    assert torch.get_num_threads() == expected
    machine.set_threads(2)
    assert torch.get_num_threads() == 2


def test_a_containers_limit_is_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    free = machine.available_bytes()
    assert 0 < free <= psutil.virtual_memory().total
    monkeypatch.setattr(machine, "memory_left", lambda: 3 * MIB)
    assert machine.available_bytes() == 3 * MIB
