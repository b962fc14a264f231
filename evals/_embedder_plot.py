"""The picture of the embedders eval."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals._embedder_pairs import KINDS
from evals._plots import COLOURS, MARKERS, figure

_STYLES = {
    ("same_meaning", "unrelated"): ("-", "same meaning / unrelated"),
    ("same_meaning", "changed"): (":", "same meaning / changed fact"),
    ("same_words", "unrelated"): ("--", "changed fact / unrelated"),
}
_LANGUAGES = {"en": "English", "zh": "Chinese"}


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the cosines of each kind, one panel for each embedder, and the ROC curves of English."""
    names = [each["embedder"] for each in result["embedders"]]
    with figure(path, "What a threshold on the cosine can part", columns=len(names) + 1, width=4.6) as axes:
        for axis, name in zip(axes, names, strict=False):
            _cosines(axis, [row for row in result["rows"] if row["embedder"] == name], result["threshold"])
            axis.set_title(_short(name))
        axes[0].set_ylabel("cosine (range and deciles)")
        _curves(axes[-1], result, names)


def _cosines(axis: Any, rows: list[Mapping[str, Any]], threshold: float) -> None:
    groups = list(dict.fromkeys((row["source"], row["language"]) for row in rows))
    for number, (source, language) in enumerate(groups):
        own = [row for row in rows if (row["source"], row["language"]) == (source, language)]
        places = [KINDS.index(row["kind"]) + (number - (len(groups) - 1) / 2) * 0.2 for row in own]
        colour = COLOURS[number]
        for place, row in zip(places, own, strict=True):
            axis.plot([place, place], [row["min"], row["max"]], color=colour, linewidth=1)
            axis.plot([place] * 9, row["quantiles"][1:-1], "_", color=colour, markersize=6)
        medians = [row["median"] for row in own]
        axis.plot(
            places, medians, MARKERS[number], color=colour, label=f"{_LANGUAGES[language]}, {source}", markersize=5
        )
    axis.axhline(threshold, color="black", linestyle="--", linewidth=0.8)
    axis.text(-0.45, threshold, "threshold", va="top", ha="left", fontsize=7)
    axis.set_xticks(range(len(KINDS)), KINDS)
    axis.set_ylim(-0.35, 1.05)
    axis.grid(axis="x", visible=False)
    axis.legend(loc="lower left")


def _curves(axis: Any, result: Mapping[str, Any], names: list[str]) -> None:
    for curve in result["roc"]:
        if curve["language"] != "en":
            continue
        style, against = _STYLES[curve["wanted"], curve["against"]]
        shares = [[0.0, *(point[name] for point in curve["points"])] for name in ("false_share", "true_share")]
        label = f"{_short(curve['embedder'])}: {against} ({curve['area']:.2f})"
        axis.plot(*shares, style, color=COLOURS[names.index(curve["embedder"])], label=label)
    axis.plot([0, 1], [0, 1], color="grey", linewidth=0.6)
    axis.set_title("ROC, English (area)")
    axis.set_xlabel("unwanted pairs that pass")
    axis.set_ylabel("wanted pairs that pass")
    axis.legend(loc="lower right", fontsize=6, frameon=True, framealpha=0.9)


def _short(name: str) -> str:
    return name.partition("@")[0].partition(",")[0]
