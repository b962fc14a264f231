"""Threads whose work nobody waits for."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

NICENESS = 10


def give_way() -> None:
    """Let requests go before the calling thread, and before the threads that it starts from now on.

    Done where the system lets a thread say so: on Linux, each has a nice value of its own. torch starts a team of
    threads for every thread that computes, so what this one computes gives way too.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
