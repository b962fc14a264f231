"""Progress on stderr, for what takes more than two seconds; quicker work shows nothing."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")

_DELAY_S = 2.0
_REFRESH_S = 0.2


@contextlib.contextmanager
def step(title: str, *, delay_s: float = _DELAY_S) -> Iterator[None]:
    """Show ``title`` and the elapsed time while the body runs.

    On a terminal the line is redrawn and removed at the end; elsewhere one line says what was done and how
    many seconds it took. Fits :data:`kvboost.assets.Progress`.
    """
    done = threading.Event()
    draw = _redraw if sys.stderr.isatty() else _one_line
    thread = threading.Thread(target=draw, args=(title, done, delay_s), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def bar(items: Iterable[T], title: str, *, total: int | None = None, unit: str = "it") -> Iterable[T]:
    """Yield ``items`` behind a progress bar; without a terminal, behind one line as in :func:`step`."""
    if sys.stderr.isatty():
        yield from tqdm(items, desc=title, total=total, unit=unit, delay=_DELAY_S, leave=False, file=sys.stderr)
        return
    with step(title):
        yield from items


def silence_other_bars() -> None:
    """Keep transformers from drawing bars of its own beside ours; to be called before it is imported."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _redraw(title: str, done: threading.Event, delay_s: float) -> None:
    started = time.monotonic()
    if done.wait(delay_s):
        return
    with tqdm(bar_format="{desc}", leave=False, file=sys.stderr) as line:
        while not done.wait(_REFRESH_S):
            line.set_description_str(f"{title}: {time.monotonic() - started:.0f} s", refresh=True)


def _one_line(title: str, done: threading.Event, delay_s: float) -> None:
    started = time.monotonic()
    if done.wait(delay_s):
        return
    sys.stderr.write(f"{title} ...")
    sys.stderr.flush()
    done.wait()
    sys.stderr.write(f" {time.monotonic() - started:.1f} s\n")
    sys.stderr.flush()
