"""The picture of the scale eval."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals._plots import COLOURS, MARKERS, figure

_STORE = (
    ("match_prefix_s", "match, a prompt of 64 known chunks"),
    ("match_reordered_s", "match, the same in another order"),
    ("put_s", "put, a chunk"),
    ("put_evicting_s", "put, a chunk, another leaves"),
    ("get_s", "get, a chunk"),
    ("evict_s", "evict, a chunk"),
)


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the processor time of a search against size, and the store's figures."""
    with figure(path, "Cost by number of chunks", columns=2, width=5.6) as axes:
        _index(axes[0], result)
        _store(axes[1], result["store"])


def _index(axis: Any, result: Mapping[str, Any]) -> None:
    for number, queries in enumerate(sorted({row["queries"] for row in result["rows"]})):
        own = [row for row in result["rows"] if row["queries"] == queries]
        sizes = [row["chunks"] for row in own]
        axis.plot(
            sizes,
            [1e3 * row["search_cpu_s"] for row in own],
            MARKERS[number] + "-",
            color=COLOURS[number],
            label=f"{queries} queries",
        )
        line = [1e3 * own[0]["search_cpu_s"] * size / sizes[0] for size in (sizes[0], sizes[-1])]
        axis.plot([sizes[0], sizes[-1]], line, ":", color="grey", label=None if number else "in proportion")
    axis.set_title(f"Search at threshold {result['threshold']}, {result['dim']} dimensions")
    _log_log(axis, "ms per prompt")


def _store(axis: Any, rows: list[Mapping[str, Any]]) -> None:
    for number, (name, label) in enumerate(_STORE):
        sizes, times = [row["chunks"] for row in rows], [1e3 * row[name] for row in rows]
        axis.plot(sizes, times, MARKERS[number] + "-", color=COLOURS[number], label=label)
    axis.set_title(f"Store, payloads of {rows[0]['payload_bytes']} bytes")
    _log_log(axis, "ms")


def _log_log(axis: Any, unit: str) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("chunks")
    axis.set_ylabel(unit)
    axis.legend(fontsize=7)
