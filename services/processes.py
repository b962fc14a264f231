"""Servers run as child processes: the real commands, in processes that do not outlive their caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from kvboost.errors import KVBoostError

from .progress import step

LISTENING = "listening on "
"""What a serving command prints first of the line that says where it listens."""

_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Child:
    """A server that runs; ``command`` is its subcommand, ``log`` what it printed."""

    command: str
    log: Path
    _process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_until_listening(self) -> str:
        """Wait for the line that says where it listens, and return what follows in it.

        Raises
        ------
        KVBoostError
            If it ends before; its last words are in the message.
        """
        while True:
            ended = self._process.poll() is not None
            where = next((line for line in self._lines() if line.startswith(LISTENING)), None)
            if where is not None:
                return where.removeprefix(LISTENING)
            if ended:
                raise KVBoostError(f"{self.command} ended before it listened: {self._last_words()}")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Raise :class:`~kvboost.errors.KVBoostError` if it has ended."""
        if self._process.poll() is not None:
            raise KVBoostError(f"{self.command} ended ({_status(self._process.returncode)}): {self._last_words()}")

    def stop(self) -> None:
        """End it in order; by force if it takes longer than ten seconds."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def _last_words(self) -> str:
        lines = [line for line in self._lines() if line.strip()]
        return lines[-1].removeprefix("kvboost: ") if lines else _status(self._process.returncode)


@contextmanager
def started(command: Sequence[str], folder: Path, logs: Path | None = None) -> Iterator[Child]:
    """Run ``kvboost COMMAND ...`` until the block ends.

    Parameters
    ----------
    folder
        Working directory, with the configuration file.
    logs
        Where its log goes; ``folder`` without it.
    """
    log = (logs or folder) / f"{command[0]}.log"
    # The configuration is in the folder's file; what this process was told by variables is part of it already.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVBOOST_")}
    with log.open("wb") as sink:
        # A session of its own: Ctrl-C reaches the caller alone, which then ends its servers in order.
        process = subprocess.Popen(
            [sys.executable, "-m", "kvboost.services.child", *command],
            cwd=folder,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,  # its end tells the server that this process is gone
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    child = Child(command[0], log, process)
    try:
        yield child
    finally:
        child.stop()


@contextmanager
def server(title: str, command: Sequence[str], folder: Path) -> Iterator[Child]:
    """As :func:`started`, but give the child once it listens; ``title`` is what the progress line says meanwhile.

    Raises
    ------
    KVBoostError
        If it ends before it listens; its last words are in the message.
    """
    with started(command, folder) as child:
        with step(title):
            child.wait_until_listening()
        yield child


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


def _status(returncode: int) -> str:
    if returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    return f"exit status {returncode}"
