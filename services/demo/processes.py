"""Servers of the demo: the real commands, in processes that never outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from kvboost.errors import KVBoostError

from ..progress import step

_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05


@contextmanager
def server(title: str, command: Sequence[str], folder: Path) -> Iterator[int]:
    """Run ``kvboost COMMAND ...`` until the block ends, and give its process id once it listens.

    Parameters
    ----------
    title
        What the progress line says while it starts.
    folder
        Working directory, with the configuration file if there is one, and place of its log.

    Raises
    ------
    KVBoostError
        If it ends before it listens; its last words are in the message.
    """
    log = folder / f"{command[0]}.log"
    with log.open("wb") as sink:
        # A session of its own: Ctrl-C reaches the demo alone, which then ends its servers in order.
        process = subprocess.Popen(
            [sys.executable, "-m", "kvboost.services.cli", *command],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with step(title):
            _wait_until_listening(process, log, command[0])
        yield process.pid
    finally:
        _stop(process)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into :class:`KeyboardInterrupt`, so that blocks are left in order. Main thread only."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_listening(process: subprocess.Popen[bytes], log: Path, name: str) -> None:
    while True:
        ended = process.poll() is not None
        text = log.read_text(encoding="utf-8", errors="replace")
        if any(line.startswith("listening on ") for line in text.splitlines()):
            return
        if ended:
            last = (text.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
            raise KVBoostError(f"{name} ended before it listened: {last.removeprefix('kvboost: ')}")
        time.sleep(_POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
