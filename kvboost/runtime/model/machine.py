"""What torch sees of this machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import torch


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


def available_bytes(device: torch.device | str = "cpu") -> int | None:
    """Return the memory of ``device`` that programs may still take; None where the system does not say."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
