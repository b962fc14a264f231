"""The picture of the staleness eval."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals._plots import COLOURS, DEFAULT_COLOUR, figure
from evals._stale_templates import KINDS

_PANELS = (
    ("stale_share", "answers with the old value"),
    ("new_share", "answers with the new value"),
    ("forced_stale_share", "old value likelier (forced choice)"),
)
_LEAST_TOP = 20.0


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the shares by kind of change, one bar for each policy."""
    policies = list(result["summary"])
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in result["rows"])]
    width = 0.8 / len(policies)
    title = f"An edited fact, asked for: {result['summary'][policies[0]]['n']} documents, {Path(result['model']).name}"
    with figure(path, title, columns=len(_PANELS), width=5.6) as axes:
        for axis, (name, label) in zip(axes, _PANELS, strict=True):
            highest = _LEAST_TOP
            for number, policy in enumerate(policies):
                shares = [100 * _share(result, policy, kind, name) for kind in kinds]
                shares.append(100 * result["summary"][policy][name])
                highest = max(highest, *shares)
                colour = DEFAULT_COLOUR if policy == "default" else COLOURS[number % len(COLOURS)]
                places = [i + (number - (len(policies) - 1) / 2) * width for i in range(len(shares))]
                axis.bar(places, shares, width * 0.9, label=policy, color=colour)
            axis.set_xticks(range(len(kinds) + 1), [*(kind.replace("_", " ") for kind in kinds), "all"])
            axis.set_ylabel("%")
            axis.set_ylim(0, min(1.1 * highest, 100))
            axis.set_title(label)
            axis.grid(axis="x", visible=False)
        axes[0].legend(loc="upper left")


def _share(result: Mapping[str, Any], policy: str, kind: str, name: str) -> float:
    """Return a share over the languages, weighted by their items."""
    rows = [row for row in result["rows"] if row["policy"] == policy and row["kind"] == kind]
    return float(sum(row[name] * row["n"] for row in rows) / sum(row["n"] for row in rows))
