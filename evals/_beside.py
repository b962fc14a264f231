"""Other work on the machine while something is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_BUSY = "while True: pass"


@contextmanager
def beside(processes: int) -> Iterator[None]:
    """Keep so many processes busy, each wanting a core of its own, until the block ends."""
    with ExitStack() as stack:
        for _ in range(processes):
            busy = subprocess.Popen([sys.executable, "-c", _BUSY])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        yield
