"""The directory of an arena's files: where it lies, whose it is, and what a killed server left behind.

``BASE/kvboost-UID/`` holds one directory for every running server of this user, each locked (``flock``) for as long
as its server lives. A lock ends with its process, however that ends; a directory that can be locked is a leftover.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvboost.errors import ConfigError

SHM = Path("/dev/shm")
_PROOF_BYTES = 32


class ArenaDirectory:
    """A directory of this process alone, mode 0700, removed when the object is closed or the process exits.

    Parameters
    ----------
    base
        Directory to make it in; None for ``/dev/shm`` where it has room for ``nbytes``, else the directory for
        temporary files. Leftovers are removed before the room is measured.
    nbytes
        What its files may come to.

    Attributes
    ----------
    path
        The directory.
    proof
        Random bytes, also the content of the file ``proof`` in it: who can tell them reads this very directory.

    Raises
    ------
    ConfigError
        If the directory cannot be made, or belongs to somebody else.
    """

    PROOF_NAME = "proof"

    def __init__(self, base: Path | None, nbytes: int) -> None:
        try:
            self.path, lock = _make(base, nbytes)
            self.proof = secrets.token_bytes(_PROOF_BYTES)
            self._close = weakref.finalize(self, _remove, self.path, lock, os.getpid())
            self._write(self.PROOF_NAME, self.proof)
        except OSError as error:
            raise ConfigError(
                f"arena_dir {base or 'in /dev/shm'} cannot be used: {error.strerror}; choose another directory, or none"
            ) from error

    def create(self, name: str, nbytes: int) -> int:
        """Make a file of ``nbytes`` whose space is really taken, so that no access to it can fail later.

        Returns
        -------
        int
            Its descriptor, the caller's to close.

        Raises
        ------
        OSError
            If there is no room; no file is left then.
        """
        file = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, nbytes)
        except OSError:
            os.close(file)
            self.unlink(name)
            raise
        return file

    def unlink(self, name: str) -> None:
        """Remove a file; mappings of it stay valid."""
        (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the directory and give up its lock."""
        self._close()

    def _write(self, name: str, data: bytes) -> None:
        file = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as out:
            out.write(data)


def _make(base: Path | None, nbytes: int) -> tuple[Path, int]:
    """Return a new directory and the descriptor that locks it."""
    candidates = [base] if base is not None else [SHM, Path(tempfile.gettempdir())]
    for candidate in candidates:
        last = candidate == candidates[-1]
        if not last and not os.access(candidate, os.W_OK):
            continue
        home = _home(candidate)
        # The lock keeps another server from taking ours for a leftover before we have locked it.
        with _locked(home):
            _remove_leftovers(home)
            room = os.statvfs(home)
            if room.f_bavail * room.f_frsize >= nbytes or last:
                path = home / f"{os.getpid()}-{secrets.token_hex(4)}"
                path.mkdir(0o700)
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(lock, fcntl.LOCK_EX)
                return path, lock
    raise AssertionError("the last candidate is always taken")


def _home(base: Path) -> Path:
    home = base / f"kvboost-{os.getuid()}"
    home.mkdir(0o700, exist_ok=True, parents=True)
    about = home.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise ConfigError(f"arena_dir {home} must be a directory of this user with mode 0700; remove or choose another")
    return home


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _remove_leftovers(home: Path) -> None:
    for folder in home.iterdir():
        try:
            file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # its server lives
        finally:
            os.close(file)


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
