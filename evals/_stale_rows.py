"""From replies to the rows and the summary of the staleness eval."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from evals._stale_probe import Reply
from evals._stale_templates import KINDS, LANGUAGES

BASELINE = "full"
FIGURES = ("stale_share", "new_share", "forced_stale_share", "log_odds", "fell_stale")

Asked = Sequence[Sequence[Reply]]
"""One sequence of replies for each item, one reply for each policy."""


def rows(asked: Asked) -> list[dict[str, Any]]:
    """Return one row for each policy, language and kind, in that order; every item is in one row of each policy."""
    made = []
    for policy in _policies(asked):
        for language in LANGUAGES:
            for kind in KINDS:
                chosen = [a for a in asked if (a[0].item.language, a[0].item.kind) == (language, kind)]
                if chosen:
                    made.append({"policy": policy, "language": language, "kind": kind, **figures(chosen, policy)})
    return made


def summary(asked: Asked) -> dict[str, dict[str, Any]]:
    """Return the figures of each policy over all items, those of each language, and those of ``after_edit``."""
    parts: dict[str, Asked] = {language: [a for a in asked if a[0].item.language == language] for language in LANGUAGES}
    parts["after_edit"] = [a for a in asked if a[0].item.kind == "after_edit"]
    return {
        policy: {
            **figures(asked, policy),
            **{name: figures(part, policy) for name, part in parts.items() if part},
        }
        for policy in _policies(asked)
    }


def figures(asked: Asked, policy: str) -> dict[str, Any]:
    """Return the figures of one policy over some items."""
    pairs = [(_of(policy, replies), _of(BASELINE, replies)) for replies in asked]
    own = [reply for reply, _ in pairs]
    return {
        "n": len(own),
        "stale_share": mean(r.verdict.stale for r in own),
        "new_share": mean(r.verdict.new for r in own),
        "both_share": mean(r.verdict.old and r.verdict.new for r in own),
        "neither_share": mean(not r.verdict.old and not r.verdict.new for r in own),
        "forced_stale_share": mean(r.log_odds < 0 for r in own),
        "log_odds": mean(r.log_odds for r in own),
        "fell_stale": sum(r.verdict.stale and not full.verdict.stale for r, full in pairs),
        "nominated_share": mean(r.nominated for r in own),
        "followed_share": mean(r.followed for r in own),
        "reuse_share": mean(r.reuse_share for r in own),
    }


def answers(asked: Asked) -> list[dict[str, Any]]:
    """Return what was asked and answered, item by item."""
    return [
        {
            "language": replies[0].item.language,
            "kind": replies[0].item.kind,
            "fact": replies[0].item.fact,
            "question": replies[0].item.question,
            "old": replies[0].item.old_forms[0],
            "new": replies[0].item.new_forms[0],
            "nominated": replies[0].nominated,
            "answers": {r.case: r.answer for r in replies},
            "log_odds": {r.case: r.log_odds for r in replies},
        }
        for replies in asked
    ]


def _policies(asked: Asked) -> list[str]:
    return [reply.case for reply in asked[0]] if asked else []


def _of(policy: str, replies: Sequence[Reply]) -> Reply:
    return next(reply for reply in replies if reply.case == policy)
