"""What torch sees of this machine."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from kvboost.runtime.model.cgroup import cpu_quota, memory_left


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor's name, threads that torch computes with on it, and names of the GPUs that torch can use."""

    cpu: str
    threads: int
    gpus: tuple[str, ...]


def this_machine() -> Machine:
    """Return what torch sees."""
    gpus = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Machine(cpu_name(), torch.get_num_threads(), gpus)


def cpu_name() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def available_bytes(device: torch.device | str = "cpu") -> int:
    """Return the memory of ``device`` that this process may still take.

    On the processor, what the machine has free, or a container's limit leaves, whichever is less.
    """
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free, left = int(psutil.virtual_memory().available), memory_left()
    return free if left is None else min(free, left)


def usable_cores() -> int:
    """Return how many processors this process can keep busy: by its affinity, and by its container's quota.

    A quota of 1.5 counts as one: a team of two would be stopped for a quarter of the time, and both wait for either.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return bound if quota is None else max(1, min(bound, int(quota)))


def busy_cores() -> float:
    """Return how many processors were busy or wanted in the last minute."""
    return float(psutil.getloadavg()[0])


def set_threads(threads: int) -> None:
    """Compute with so many CPU threads in this process; 0 for torch's own choice, on no more cores than are usable."""
    torch.set_num_threads(threads or min(torch.get_num_threads(), usable_cores()))
