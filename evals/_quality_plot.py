"""The picture of the quality eval: loss against budget, one line a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals._plots import COLOURS, DEFAULT_COLOUR, MARKERS, figure, legend_beside

_MOST_TASKS = 4
_UNSHIFTED = ", no shift"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw mean KL over rotate-only's against the charged budget by task, and top-1 agreement for the first task.

    The loss is drawn as a share of rotate-only's on the same prompts: a quick run has fewer prompts for some lines.
    """
    tasks = list(dict.fromkeys(row["task"] for row in result["rows"]))[:_MOST_TASKS]
    title = "Loss of reuse against full prefill, by repair strategy and budget"
    with figure(path, title, columns=len(tasks) + 1, width=4.2) as axes:
        for axis, task in zip(axes, tasks, strict=False):
            _panel(axis, result, task, "kl_over_rotate_only")
            axis.set_yscale("log")
            axis.set_title(f"{task}: lower is better")
        axes[0].set_ylabel("mean KL(full || reuse) over rotate-only's")
        _panel(axes[-1], result, tasks[0], "top1_agreement")
        axes[-1].set_ylabel("answer tokens with the same top token, share")
        axes[-1].set_title(f"{tasks[0]}: higher is better")
        legend_beside(axes[-1])


def _panel(axis: Any, result: Mapping[str, Any], task: str, name: str) -> None:
    rows = [row for row in result["rows"] if row["task"] == task and row.get(name) is not None]
    default = result["default_policy"]["repair"]
    lines = dict.fromkeys(row["repair"] for row in rows if row.get("shift") is not None and row["recompute_ratio"] > 0)
    strategies = list(dict.fromkeys(line.removesuffix(_UNSHIFTED) for line in lines))
    for line in lines:
        strategy = line.removesuffix(_UNSHIFTED)
        order = strategies.index(strategy)
        of = [row for row in rows if row["repair"] == line]
        axis.plot(
            [row["recompute_ratio_charged"] for row in of],
            [row[name] for row in of],
            marker=MARKERS[order % len(MARKERS)],
            markersize=5,
            color=DEFAULT_COLOUR if strategy == default else COLOURS[order % len(COLOURS)],
            linestyle=":" if line.endswith(_UNSHIFTED) else "-",
            linewidth=1.8 if line == default else 1.0,
            label=f"{line} (default)" if line == default else line,
        )
    for row in rows:
        if row["repair"] == "none":
            axis.axhline(row[name], color="#555555", linewidth=1.0, linestyle="--", label="rotate only")
        elif row["repair"] in ("full, bfloat16", "full, float32"):
            axis.axhline(row[name], color="#999999", linewidth=1.0, linestyle="-.", label=f"{row['repair']} (noise)")
    axis.set_xlabel("recompute ratio, as charged")
