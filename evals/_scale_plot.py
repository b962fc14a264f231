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
    """Draw search time against size for the default index and for exact search, and the store's figures."""
    with figure(path, "Cost by number of chunks", columns=2, width=5.6) as axes:
        _index(axes[0], result)
        _store(axes[1], result["store"])


def _index(axis: Any, result: Mapping[str, Any]) -> None:
    for number, queries in enumerate(sorted({row["queries"] for row in result["rows"]})):
        own = [row for row in result["rows"] if row["queries"] == queries]
        for style, label, rows in (
            ("--", "exact", [row for row in own if row["index"] == "exact"]),
            ("-", "as chosen by size", [row for row in own if row["default"]]),
        ):
            axis.plot(
                [row["chunks"] for row in rows],
                [1e3 * row["search_s"] for row in rows],
                MARKERS[number] + style,
                color=COLOURS[number],
                label=f"{queries} queries, {label}",
            )
        first = next(row for row in own if row["default"])
        sizes = [row["chunks"] for row in own]
        line = [1e3 * first["search_s"] * size / first["chunks"] for size in (min(sizes), max(sizes))]
        axis.plot([min(sizes), max(sizes)], line, ":", color="grey", label=None if number else "in proportion")
    axis.axvline(result["exact_up_to"], color="black", linewidth=0.6)
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
