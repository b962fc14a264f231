"""Processes that answer commands, one JSON object a line."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kvboost.errors import KVBoostError


@dataclass(frozen=True, slots=True)
class Worker:
    """A running process; ``log`` holds what it prints to standard error."""

    name: str
    process: subprocess.Popen[str]
    log: IO[str]

    def tell(self, command: dict[str, Any]) -> None:
        """Send a command; :meth:`hear` gives the answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: hearing says why
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for the next answer.

        Raises
        ------
        KVBoostError
            If the process ended instead; its last words are in the message.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.log.seek(0)
            last = (self.log.read().strip().splitlines() or [f"exit status {status}"])[-1]
            raise KVBoostError(f"{self.name} ended: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command and wait for the answer."""
        self.tell(command)
        return self.hear()


@contextmanager
def worker(name: str, command: Sequence[str], folder: Path | None = None) -> Iterator[Worker]:
    """Run ``command`` in ``folder`` until the block ends.

    Raises
    ------
    KVBoostError
        If it cannot be run.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder or tempfile.gettempdir(),
            )
        except OSError as error:
            raise KVBoostError(f"{command[0]} for {name} cannot be run: {error}") from error
        try:
            yield Worker(name, process, log)
        finally:
            process.kill()
            process.communicate()
