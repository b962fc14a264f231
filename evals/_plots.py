"""How the evals draw: one style, colours that colour-blind readers can tell apart, a marker for each as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvboost.errors import InputError

# Okabe and Ito's palette; black is kept for the default policy.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B8A800", "#7F7F7F")
DEFAULT_COLOUR = "#000000"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@contextmanager
def figure(path: Path, title: str, columns: int = 1, width: float = 5.2, height: float = 4.0) -> Iterator[Any]:
    """Yield a row of axes (a list) under one title, and save the picture.

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise InputError("--plot needs matplotlib; install kvboost-chunks[evals], or leave --plot out") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(_STYLE):
        drawn, axes = pyplot.subplots(1, columns, figsize=(width * columns, height), squeeze=False)
        drawn.suptitle(title, fontsize=11)
        try:
            yield list(axes[0])
            drawn.tight_layout()
            drawn.savefig(path, dpi=150, bbox_inches="tight")
        finally:
            pyplot.close(drawn)


def legend_beside(axis: Any) -> None:
    """Put the legend to the right of ``axis``, where it hides nothing."""
    axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
