"""What torch sees of this machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvboost.runtime.calibrate import cpu_name


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
