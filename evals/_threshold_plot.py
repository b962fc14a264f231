"""The picture of the threshold eval: loss against reuse, and against time to first token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals._plots import COLOURS, MARKERS, figure, legend_beside


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw every setting as a point; the line joins those that no other beats, with their thresholds."""
    with figure(path, "Settings for near-duplicate documents: what reuse costs", columns=2, width=5.6) as axes:
        _panel(axes[0], result, "reuse_share", "pareto")
        axes[0].set_xlabel("share of prompt tokens reused")
        axes[0].set_title("Reuse against loss: right and low is better\n(numbers: similarity thresholds on the front)")
        _panel(axes[1], result, "ttft_ratio", "pareto_ttft")
        axes[1].set_xlabel("time to first token, as a share of full prefill's")
        axes[1].set_title("Time against loss: left and low is better")
        for number, (point, thresholds) in enumerate(sorted(_labels(result["cells"]).items())):
            above = 9 if number % 2 == 0 else -15
            axes[0].annotate(thresholds, point, textcoords="offset points", xytext=(0, above), ha="center", fontsize=7)
        legend_beside(axes[1])


def _panel(axis: Any, result: Mapping[str, Any], across: str, front: str) -> None:
    cells = result["cells"]
    chunks = list(dict.fromkeys((cell["min_tokens"], cell["max_tokens"]) for cell in cells))
    tiers = list(dict.fromkeys(cell["tiers"] for cell in cells))
    for i, chunk in enumerate(chunks):
        for j, names in enumerate(tiers):
            own = [c for c in cells if (c["min_tokens"], c["max_tokens"]) == chunk and c["tiers"] == names]
            axis.scatter(
                [cell[across] for cell in own],
                [cell["kl_mean"] for cell in own],
                color=COLOURS[i % len(COLOURS)],
                marker=MARKERS[j % len(MARKERS)],
                alpha=0.8,
                label=f"{names}, chunks {chunk[0]}-{chunk[1]}",
            )
    best = sorted((cell[across], cell["kl_mean"]) for cell in cells if cell[front])
    axis.plot([x for x, _ in best], [y for _, y in best], color="#555555", linewidth=1.0, label="Pareto front")
    axis.axhline(result["max_kl"], color="#D55E00", linewidth=1.0, linestyle="--", label="loss asked for")
    # Linear near zero: the prefix tier loses nothing, and has no place on a logarithmic axis.
    axis.set_yscale("symlog", linthresh=1e-3)
    axis.set_ylim(bottom=-1e-4)
    axis.set_ylabel("mean KL(full || reuse), nats")


def _labels(cells: Sequence[Mapping[str, Any]]) -> dict[tuple[float, float], str]:
    """Return the thresholds on the front of reuse and loss; settings that fall on the same point share a label."""
    labels: dict[tuple[float, float], str] = {}
    for cell in cells:
        if cell["pareto"] and cell["threshold"] is not None:
            point = (cell["reuse_share"], cell["kl_mean"])
            labels[point] = f"{labels[point]}, {cell['threshold']:g}" if point in labels else f"{cell['threshold']:g}"
    return labels
