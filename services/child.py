"""A command of ``kvboost`` that ends when the process that started it has ended, however that happened.

Standard input is a pipe that the starter holds open and never writes to. It ends with the starter, also after
``kill -9``, on every system that has pipes.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from .cli import main

_STDIN = 0
_GRACE_S = 10.0


def end_with_starter() -> None:
    """Have this process stop in order, as by SIGTERM, once standard input ends; by force if that takes too long."""
    threading.Thread(target=_wait, name="starter", daemon=True).start()


def _wait() -> None:
    while os.read(_STDIN, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    end_with_starter()
    raise SystemExit(main())
