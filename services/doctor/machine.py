"""Processor, memory and shared memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kvboost.runtime.model.cgroup import cpu_quota
from kvboost.runtime.model.machine import Machine, available_bytes, busy_cores, this_machine, usable_cores

from .finding import Examination, Notes

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_BYTES = 64 << 20
"""What a container gets where nobody asked for more; a few thousand tokens' K/V fill it."""


BUSY_SHARE = 0.5
"""Of the cores; one thread is allowed for besides, which is this examination's own."""


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of a file system, or None where there is none."""

    total: int
    free: int


def examine_machine(max_bytes: int) -> Examination:
    """Look at cores, threads, memory (against a cache of ``max_bytes``) and ``/dev/shm``."""
    notes = Notes("machine")
    cores, machine = usable_cores(), this_machine()
    _look_at_cores(notes, machine, cores)
    _look_at_load(notes, busy_cores(), cores)
    _look_at_memory(notes, available_bytes(), max_bytes)
    _look_at_shared_memory(notes, space_of(SHARED_MEMORY), max_bytes)
    return notes.done()


def space_of(folder: Path) -> Space | None:
    """Return the space of the file system that ``folder`` lies on; None where there is no such folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def size(nbytes: int) -> str:
    """Return a byte count as people read it."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"


def _look_at_cores(notes: Notes, machine: Machine, cores: int) -> None:
    notes.figures |= {"cpu": machine.cpu, "cores": cores, "threads": machine.threads, "gpus": list(machine.gpus)}
    quota = cpu_quota()
    notes.figures["cpu_quota"] = quota
    limit = f" (the container's quota is {quota:g})" if quota is not None else ""
    text = f"{machine.cpu}: {cores} cores to run on{limit}, torch computes with {machine.threads} threads"
    if machine.threads > cores:
        remedy = f"in a program of your own set OMP_NUM_THREADS={cores}; the runtime service does so (runtime.threads)"
        notes.warn(text, f"more threads than cores wait for each other; {remedy}")
    elif machine.threads == 1 < cores:
        notes.note(text, "unset OMP_NUM_THREADS to use the other cores, or pass --threads to kvboost serve-runtime")
    else:
        notes.ok(text)
    if machine.gpus:
        notes.ok(f"GPU: {', '.join(machine.gpus)}")
    else:
        notes.note("no GPU that torch can use; models run on the processor")


def _look_at_load(notes: Notes, busy: float, cores: int) -> None:
    """Warn where others hold the cores: torch's team of threads waits for its slowest member."""
    notes.figures["busy_cores"] = busy
    if busy - 1.0 > BUSY_SHARE * cores:
        notes.warn(
            f"over the last minute {busy:.1f} threads wanted {cores} cores: prefill waits for the slowest one",
            "stop other work, or give the runtime cores of its own (taskset, a CPU set) and runtime.threads as many",
        )


def _look_at_memory(notes: Notes, available: int, max_bytes: int) -> None:
    notes.figures |= {"available_bytes": available, "cache_max_bytes": max_bytes}
    if available < max_bytes:
        notes.warn(
            f"{size(available)} of memory are free, a cache may take {size(max_bytes)} (cache.max_bytes)",
            f"set cache.max_bytes below {size(available)}, less what the model needs",
        )
    else:
        notes.ok(f"{size(available)} of memory are free, a cache may take {size(max_bytes)} (cache.max_bytes)")


def _look_at_shared_memory(notes: Notes, space: Space | None, max_bytes: int) -> None:
    notes.figures |= {
        "shared_memory_bytes": space.total if space else None,
        "shared_memory_free_bytes": space.free if space else None,
    }
    if space is None:
        notes.note(f"no {SHARED_MEMORY}: K/V from a cache server come as frames, which takes longer")
        return
    text = f"shared memory: {SHARED_MEMORY} has {size(space.total)}, {size(space.free)} free"
    if space.free < LEAST_SHARED_BYTES or space.total <= LEAST_SHARED_BYTES:
        notes.warn(text, "give it more: docker run --shm-size=4g, or mount -o remount,size=4G /dev/shm")
    elif space.free < max_bytes:
        notes.note(text, "a cache server that shares its memory needs cache.max_bytes free there")
    else:
        notes.ok(text)
