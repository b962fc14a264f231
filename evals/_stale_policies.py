"""The policies that the staleness eval compares, and the one part of the library that it switches off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvboost.policy import ReusePolicy
from kvboost.protocols import PromptSegmenter
from kvboost.runtime.prepare.prepare import Preparer
from kvboost.types import Segmentation, Tier

BUDGETS = (0.05, 0.15, 0.30)


@dataclass(frozen=True, slots=True)
class Case:
    """A policy under the name of its rows.

    Attributes
    ----------
    fact_rule
        Whether the sentence around a changed fact is recomputed whole. Without it only differing tokens are.
    """

    name: str
    policy: ReusePolicy
    fact_rule: bool = True

    def preparer(self, own: Preparer) -> Preparer:
        """Return the model's preparer, without the rule on facts if that is off."""
        return own if self.fact_rule else replace(own, segmenter=_WithoutSentences(own.segmenter))


def cases(default: ReusePolicy, quick: bool) -> list[Case]:
    """Return full prefill, the default policy, and what remains of it when its parts are taken away.

    ``rotate_only`` is reuse without any care: every token that equals the donor's keeps the donor's K/V, re-rotated.
    """
    default = replace(default, audit_rate=0.0)
    bare = replace(default, repair="none")
    made = [
        Case("full", replace(default, tiers=())),
        Case("default", default),
        Case("default_no_fact_rule", default, fact_rule=False),
        Case("rotate_only_fact_rule", bare),
        Case("rotate_only", replace(bare, min_span=1), fact_rule=False),
    ]
    if not quick:
        made.insert(1, Case("prefix", replace(default, tiers=(Tier.PREFIX,))))
        made.append(Case("substitute", replace(default, tiers=(*default.tiers, Tier.SUBSTITUTE))))
        query = replace(default, repair="query")
        made += [Case(f"query_{ratio:.2f}", replace(query, recompute_ratio=ratio)) for ratio in BUDGETS]
    return made


@dataclass(frozen=True, slots=True)
class _WithoutSentences:
    """A segmenter that names no sentences, so that none is recomputed for a fact in it. For measurements only."""

    segmenter: PromptSegmenter

    def segment(self, token_ids: Sequence[int]) -> Segmentation:
        return Segmentation(self.segmenter.segment(token_ids).chunks, ())
