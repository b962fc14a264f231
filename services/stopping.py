"""How a server is told to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """Give an event that SIGTERM and SIGINT set, for as long as the block runs. Main thread only."""
    asked = threading.Event()
    before = {s: signal.signal(s, lambda *_: asked.set()) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
