"""Substitution: may a donor's wording stand in for a reworded chunk, and how many of its tokens?

The donor's K/V take the first places of the target. What the target has more tokens is computed as the prompt
has it; what the donor has more is cut off. Leaving places empty is no way out: decoding makes its own mask, and
would see them.

The guard refuses what changes a number, a negation or a name. It cannot tell a synonym from another word: that
"buyer" became "seller" is left to the similarity threshold, which is why this tier is off unless asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvboost.runtime.plan.diff import Decode, widened
from kvboost.runtime.plan.facts import changes_fact, languages_of


def tokens_standing_in(donor_ids: Sequence[int], target_ids: Sequence[int], decode: Decode) -> int:
    """Return how many of the donor's first tokens may stand for the target's first ones; 0 if refused.

    Refused where the texts differ in a fact, and where the part that is cut off holds one.
    """
    languages = languages_of(decode(target_ids))
    if changes_fact(decode(donor_ids), decode(target_ids), languages):
        return 0
    count = min(len(donor_ids), len(target_ids))
    if count < len(donor_ids) and changes_fact(
        decode(widened(donor_ids, count, len(donor_ids), decode)), "", languages
    ):
        return 0
    return count
