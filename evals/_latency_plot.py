"""The picture of the latency eval: ratio to the resident limit, where the time goes, and the hand-over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals._plots import COLOURS, MARKERS, figure, legend_beside

_LIMITS = (("in process", 1.10, "-"), ("same host", 1.25, "--"))
_MOST_BARS = 14


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw ratios by share, stages by cell, and bytes per second by path."""
    with figure(path, "Time to first token", columns=3, width=6.4, height=5.2) as axes:
        _ratios(axes[0], [cell for cell in result["cells"] if cell["ratio_to_resident"] is not None])
        _stages(axes[1], result["cells"])
        _handover(axes[2], result["handover"])


def _ratios(axis: Any, cells: Sequence[Mapping[str, Any]]) -> None:
    """One line for each tier, length, transport and dtype would be too many: a mark each, colour the transport."""
    transports = list(dict.fromkeys(cell["transport"] for cell in cells))
    tiers = list(dict.fromkeys(cell["tier"] for cell in cells))
    for i, transport in enumerate(transports):
        for j, tier in enumerate(tiers):
            own = [cell for cell in cells if cell["transport"] == transport and cell["tier"] == tier]
            # Neighbouring marks would hide each other.
            spread = 1.0 + 0.06 * (i - 1) + 0.02 * (j - 1)
            axis.scatter(
                [cell["computed_tokens"] / cell["prompt_tokens"] * spread for cell in own],
                [cell["ratio_to_resident"] for cell in own],
                s=[10 + cell["tokens"] / 128 for cell in own],
                color=COLOURS[i % len(COLOURS)],
                marker=MARKERS[j % len(MARKERS)],
                alpha=0.75,
                label=f"{tier}, {transport.replace('_', ' ')}",
            )
    for name, bound, style in _LIMITS:
        axis.axhline(bound, color="#555555", linewidth=1.0, linestyle=style, label=f"asked, {name}: {bound:g}")
    if cells:
        axis.set_xscale("log")
        axis.legend(loc="upper left", fontsize=7)
    axis.set_xlabel("share of the prompt computed (larger marks: longer prompts)")
    axis.set_ylabel("TTFT over the resident limit's")
    axis.set_title("1 is the limit")


def _stages(axis: Any, cells: Sequence[Mapping[str, Any]]) -> None:
    """Draw the cells in which look-up and hand-over weigh most: those with the fewest computed tokens."""
    chosen = sorted((cell for cell in cells if cell["tier"] != "cold"), key=lambda cell: cell["computed_tokens"])
    chosen = chosen[:_MOST_BARS]
    names = list(dict.fromkeys(name for cell in chosen for name in cell["stages_s"]))
    left = [0.0] * len(chosen)
    for i, name in enumerate(names):
        widths = [1000 * cell["stages_s"].get(name, 0.0) for cell in chosen]
        hatch = "//" if i >= len(COLOURS) else None
        axis.barh(range(len(chosen)), widths, left=left, color=COLOURS[i % len(COLOURS)], hatch=hatch, label=name)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for i, cell in enumerate(chosen):
        if cell["resident_ttft_s"] is not None:
            label = "resident limit" if i == 0 else None
            axis.plot([1000 * cell["resident_ttft_s"]] * 2, [i - 0.45, i + 0.45], color="#000000", label=label)
    axis.set_yticks(range(len(chosen)), [_label(cell) for cell in chosen], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("milliseconds")
    axis.set_title("Where the time goes")
    if chosen:
        legend_beside(axis)


def _label(cell: Mapping[str, Any]) -> str:
    return f"{cell['tier']} {cell['tokens']} {cell['new_share']:g} {cell['transport']} {cell['dtype']}"


def _handover(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    axis.barh([row["path"] for row in rows], [row["bytes_per_s"] / 1e9 for row in rows], color=COLOURS[0])
    for i, row in enumerate(rows):
        axis.text(row["bytes_per_s"] / 1e9, i, f" {row['bytes_per_s'] / 1e9:.2f}", va="center", fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("GB/s into place")
    axis.set_title("Hand-over")
