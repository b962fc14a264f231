"""From matches to a plan.

The planner trusts nobody: token ids are compared again here, a similar donor lends only the tokens that a diff
finds equal, and the sentence around a changed fact is computed whole, because K/V after a changed fact still
carry the old one.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kvboost.policy import ReusePolicy
from kvboost.runtime.diff import Decode, compare, subtract
from kvboost.runtime.plan import Plan, ReuseSpan
from kvboost.types import Match, Span, Tier

# What is longer has no sentence ends at all, and one changed word in it must not cost the whole text.
LONGEST_SENTENCE_TOKENS = 256


def build_plan(
    token_ids: Sequence[int],
    matches: Sequence[Match],
    sentences: Sequence[Span],
    policy: ReusePolicy,
    tiers: AbstractSet[Tier],
    decode: Decode,
) -> Plan:
    """Decide what is reused.

    Parameters
    ----------
    token_ids
        The prompt, ``N`` tokens.
    matches
        As a cache returned them; not trusted.
    sentences
        Token spans of whole sentences, for the rule on changed facts.
    policy, tiers
        What the user allows, and what the model supports.
    decode
        Token ids to text.
    """
    allowed = set(policy.tiers) & tiers
    declined: dict[str, None] = {}
    pieces: list[ReuseSpan] = []
    for match in matches:
        if match.tier in (Tier.PREFIX, Tier.EXACT) and match.tier in allowed:
            obstacle = _obstacle(token_ids, match)
            if obstacle:
                declined[obstacle] = None
            else:
                pieces.append(ReuseSpan(match.target, match.donor, match.donor_span.start, match.tier))
    known = [piece.target for piece in pieces]
    if Tier.SIMILAR in allowed:
        for offer in _similar_offers(token_ids, matches, sentences, policy, decode):
            pieces += offer.pieces
            known += offer.known
    pieces = _in_known_sentences(pieces, known, sentences, len(token_ids))
    kept = _disjoint(sorted(pieces, key=lambda p: (p.target.start, p.tier is not Tier.PREFIX)), len(token_ids) - 1)
    plan = Plan(len(token_ids), tuple(kept), tuple(declined))
    return _drop_short_runs(plan, policy.min_span)


def _obstacle(token_ids: Sequence[int], match: Match) -> str:
    """Name why a hash match is not believed, or return an empty string."""
    ours = tuple(token_ids[match.target.start : match.target.end])
    if ours != match.donor.token_ids[match.donor_span.start : match.donor_span.end]:
        return "token ids differ from the donor's"
    moved = match.donor.start + match.donor_span.start != match.target.start
    if match.tier is Tier.PREFIX and (moved or not match.donor.exact):
        return "a prefix donor stands elsewhere, or is not exact"
    return ""


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a similar donor lends, and the target's tokens in sentences whose facts it shares."""

    pieces: list[ReuseSpan]
    known: list[Span]


def _similar_offers(
    token_ids: Sequence[int], matches: Sequence[Match], sentences: Sequence[Span], policy: ReusePolicy, decode: Decode
) -> list[_Offer]:
    """Return, for each target with similar nominees, the offer of the nominee that lends most."""
    nominees: dict[Span, list[Match]] = {}
    for match in matches:
        inside = match.target.end <= len(token_ids)
        if match.tier is Tier.SIMILAR and match.similarity >= policy.threshold and inside:
            nominees.setdefault(match.target, []).append(match)
    offers = []
    for target, candidates in nominees.items():
        options = [_offer_of(token_ids, target, m, sentences, policy.min_span, decode) for m in candidates]
        offers.append(max(options, key=lambda option: sum(len(p.target) for p in option.pieces)))
    return offers


def _offer_of(
    token_ids: Sequence[int], target: Span, match: Match, sentences: Sequence[Span], min_span: int, decode: Decode
) -> _Offer:
    ours = token_ids[target.start : target.end]
    inside = [Span(max(s.start, target.start) - target.start, min(s.end, target.end) - target.start)
              for s in sentences if s.start < target.end and s.end > target.start]  # fmt: skip
    found = compare(match.donor.token_ids, ours, inside, min_span, decode)
    pieces = [
        ReuseSpan(
            Span(b.start, b.end).shifted(target.start), match.donor, b.donor_start, Tier.SIMILAR, match.similarity
        )
        for b in found.blocks
    ]
    return _Offer(pieces, subtract(target, [s.shifted(target.start) for s in found.changed]))


def _in_known_sentences(
    pieces: Sequence[ReuseSpan], known: Sequence[Span], sentences: Sequence[Span], num_tokens: int
) -> list[ReuseSpan]:
    """Take approximate tokens out of sentences that reach into a chunk with a changed fact, or with no donor.

    A sentence longer than a chunk goes on in the next one, whose own tokens may all be equal.
    """
    seen = bytearray(num_tokens)
    for span in known:
        end = min(span.end, num_tokens)
        seen[span.start : end] = b"\1" * (end - span.start)
    unknown = [s for s in sentences if len(s) <= LONGEST_SENTENCE_TOKENS and 0 in seen[s.start : s.end]]
    return [part for piece in pieces for part in ([piece] if piece.tier is Tier.PREFIX else piece.outside(unknown))]


def _disjoint(pieces: Sequence[ReuseSpan], end: int) -> list[ReuseSpan]:
    """Keep pieces in order that overlap nothing before them, and cut the last at ``end``."""
    kept: list[ReuseSpan] = []
    at = 0
    for piece in pieces:
        if piece.target.start >= at:
            cut = piece.cut(end)
            if cut is not None:
                kept.append(cut)
                at = cut.target.end
    return kept


def _drop_short_runs(plan: Plan, min_span: int) -> Plan:
    """Compute approximate runs shorter than ``min_span``: they save nothing and lose as much as long ones."""
    short = [run.span for run in plan.runs if not run.lossless and len(run.span) < min_span]
    if not short:
        return plan
    kept = [p for p in plan.reuse if not any(s.start <= p.target.start < s.end for s in short)]
    return Plan(plan.num_tokens, tuple(kept), plan.declined)
