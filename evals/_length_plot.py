"""The picture of the length eval."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals._plots import COLOURS, MARKERS, figure, legend_beside


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw processor time by stage of each kind of request on the tiny model, against the prompt's length."""
    rows = [row for row in result["rows"] if row["model"] == "tiny"]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    stages = list(dict.fromkeys(stage for row in rows for stage in row["stages_cpu_s"]))
    with figure(path, "Processor time by prompt length, tiny model", columns=len(kinds), width=4.2) as axes:
        for axis, kind in zip(axes, kinds, strict=True):
            own = [row for row in rows if row["kind"] == kind]
            lengths = [row["prompt_tokens"] for row in own]
            for number, stage in enumerate(stages):
                seconds = [row["stages_cpu_s"].get(stage) or None for row in own]
                marked = MARKERS[number % len(MARKERS)] + "-"
                axis.plot(lengths, seconds, marked, color=COLOURS[number % len(COLOURS)], label=stage)
            axis.plot(lengths, [1e-3 * n / lengths[0] for n in lengths], ":", color="grey", label="in proportion")
            axis.set(title=kind, xscale="log", yscale="log", xlabel="prompt tokens", ylabel="seconds of one core")
        legend_beside(axes[-1])
