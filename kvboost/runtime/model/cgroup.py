"""What the control groups of this process leave it: a container's limits, which the machine's own figures do not show.

Limits hold for a group and everything below it, so the strictest one between this process's group and the root counts.
Both versions are read; where neither is mounted, nothing is limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MOUNT = Path("/sys/fs/cgroup")
GROUPS = Path("/proc/self/cgroup")
# Version 1 writes "no limit" as a number of pages that no machine has.
_UNLIMITED_BYTES = 1 << 60


def memory_left(mount: Path = MOUNT, groups: Path = GROUPS) -> int | None:
    """Return the bytes that this process may still take, file pages that can be dropped included; None for no limit.

    Parameters
    ----------
    mount, groups
        Where control groups are mounted, and the file that names those of this process.
    """
    left = []
    for folder in _folders("memory", mount, groups):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED_BYTES:
            left.append(max(limit - used + _droppable(folder / "memory.stat"), 0))
    return min(left, default=None)


def cpu_quota(mount: Path = MOUNT, groups: Path = GROUPS) -> float | None:
    """Return how many processors' time this process may use, such as 1.5; None for no limit. Parameters as above."""
    quotas = []
    for folder in _folders("cpu", mount, groups):
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _folders(controller: str, mount: Path, groups: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and of all above it, in every hierarchy that may limit it.

    In a container the group's path may be that of the host; then what is mounted begins at the group itself.
    """
    for line in _text(groups).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        roots = [mount / controllers, mount / controller] if controllers else [mount, mount / "unified"]
        root = next((root for root in roots if root.is_dir()), None)
        if root is not None:
            group = PurePosixPath(path.lstrip("/"))
            yield from (root / part for part in (group, *group.parents))


def _droppable(stat: Path) -> int:
    """Return the bytes of file pages that were not used lately: they count as used, and make room when it is needed."""
    lines = dict(line.split(maxsplit=1) for line in _text(stat).splitlines() if " " in line)
    return int(lines.get("total_inactive_file", lines.get("inactive_file", 0)))


def _number(*files: Path) -> int | None:
    """Return the number in the first of the files that holds one."""
    texts = (_text(file).strip() for file in files)
    return next((int(text) for text in texts if text.lstrip("-").isdigit()), None)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
