"""From matches to a plan: which prompt tokens take cached K/V, and which are computed.

The plan trusts nobody: token ids are compared again here, a similar donor lends only the tokens that a diff
finds equal, and the sentence around a changed fact is computed whole, because K/V after a changed fact still
carry the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kvboost.policy import ReusePolicy
from kvboost.runtime.diff import reusable_blocks
from kvboost.types import Donor, Match, Span, Tier

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class ReuseSpan:
    """Prompt tokens that take K/V from one donor.

    Attributes
    ----------
    target
        The prompt positions.
    donor
        The cached chunk; its tokens ``[offset, offset + len(target))`` equal the target's.
    offset
        First donor token used, counted within the chunk.
    """

    target: Span
    donor: Donor
    offset: int
    tier: Tier
    similarity: float = 1.0

    @property
    def shift(self) -> int:
        """New position minus the position the K/V were computed at."""
        return self.target.start - (self.donor.start + self.offset)

    def cut(self, end: int) -> ReuseSpan | None:
        """Return the part before prompt position ``end``, or None if nothing is left."""
        if self.target.end <= end:
            return self
        if self.target.start >= end:
            return None
        return ReuseSpan(Span(self.target.start, end), self.donor, self.offset, self.tier, self.similarity)


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring reused spans of one donor sequence with the same shift; repair works on these."""

    span: Span
    shift: int
    lossless: bool

    @property
    def repairable(self) -> bool:
        """Whether recomputing some of its tokens brings the rest closer to an ordinary prefill."""
        return not self.lossless


@dataclass(frozen=True, slots=True)
class Plan:
    """Reuse and compute spans that cover ``[0, num_tokens)`` exactly once, each list in order.

    The last token is always computed: its logits are what the request is for.
    """

    num_tokens: int
    reuse: tuple[ReuseSpan, ...]
    declined: tuple[str, ...] = ()

    @property
    def compute(self) -> tuple[Span, ...]:
        """The spans between the reused ones."""
        spans: list[Span] = []
        at = 0
        for piece in self.reuse:
            if piece.target.start > at:
                spans.append(Span(at, piece.target.start))
            at = piece.target.end
        spans.append(Span(at, self.num_tokens))
        return tuple(spans)

    @property
    def runs(self) -> tuple[Run, ...]:
        """Reused spans merged into runs."""
        runs: list[Run] = []
        previous: ReuseSpan | None = None
        for piece in self.reuse:
            lossless = piece.tier is Tier.PREFIX
            if previous is not None and _continues(previous, piece) and runs[-1].lossless == lossless:
                runs[-1] = Run(Span(runs[-1].span.start, piece.target.end), piece.shift, lossless)
            else:
                runs.append(Run(piece.target, piece.shift, lossless))
            previous = piece
        return tuple(runs)

    @property
    def repairable_tokens(self) -> int:
        """Reused tokens that repair may choose from."""
        return sum(len(run.span) for run in self.runs if run.repairable)

    @property
    def lossless(self) -> bool:
        """Whether all reused K/V are those of an ordinary prefill of this very prompt."""
        return all(piece.tier is Tier.PREFIX for piece in self.reuse)

    @property
    def approximate_from(self) -> int | None:
        """First position whose K/V are approximate or depend on such ones; None if there is none."""
        return min((p.target.start for p in self.reuse if p.tier is not Tier.PREFIX), default=None)

    @property
    def tail_start(self) -> int:
        """Start of the computed tokens after the last reused run."""
        return self.reuse[-1].target.end if self.reuse else 0

    def chunk_ids(self) -> tuple[int, ...]:
        """Return the donors needed, each once, in order of first use."""
        return tuple(dict.fromkeys(piece.donor.chunk_id for piece in self.reuse))

    def without(self, missing: AbstractSet[int], reason: str) -> Plan:
        """Return the plan with every span of the ``missing`` donors computed instead."""
        kept = tuple(piece for piece in self.reuse if piece.donor.chunk_id not in missing)
        return Plan(self.num_tokens, kept, (*self.declined, reason))

    def noting(self, reason: str) -> Plan:
        """Return the plan with one more reason why something was not reused or repaired."""
        return Plan(self.num_tokens, self.reuse, (*self.declined, reason))

    def lossless_only(self) -> Plan:
        """Return the plan reduced to its prefix tier."""
        return Plan(self.num_tokens, tuple(p for p in self.reuse if p.tier is Tier.PREFIX), self.declined)


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
            if _ids_equal(token_ids, match):
                pieces.append(ReuseSpan(match.target, match.donor, match.donor_span.start, match.tier))
            else:
                declined["token ids differ from the donor's"] = None
    if Tier.SIMILAR in allowed:
        pieces += _similar_pieces(token_ids, matches, sentences, policy, decode)
    kept = _disjoint(sorted(pieces, key=lambda p: (p.target.start, p.tier is not Tier.PREFIX)), len(token_ids) - 1)
    plan = Plan(len(token_ids), tuple(kept), tuple(declined))
    return _drop_short_runs(plan, policy.min_span)


def _ids_equal(token_ids: Sequence[int], match: Match) -> bool:
    ours = tuple(token_ids[match.target.start : match.target.end])
    return ours == match.donor.token_ids[match.donor_span.start : match.donor_span.end]


def _similar_pieces(
    token_ids: Sequence[int], matches: Sequence[Match], sentences: Sequence[Span], policy: ReusePolicy, decode: Decode
) -> list[ReuseSpan]:
    """Return, for each target with similar nominees, the pieces of the nominee that lends most."""
    nominees: dict[Span, list[Match]] = {}
    for match in matches:
        if match.tier is Tier.SIMILAR and match.similarity >= policy.threshold:
            nominees.setdefault(match.target, []).append(match)
    pieces: list[ReuseSpan] = []
    for target, candidates in nominees.items():
        options = [_pieces_of(token_ids, target, m, sentences, policy.min_span, decode) for m in candidates]
        pieces += max(options, key=lambda option: sum(len(p.target) for p in option))
    return pieces


def _pieces_of(
    token_ids: Sequence[int], target: Span, match: Match, sentences: Sequence[Span], min_span: int, decode: Decode
) -> list[ReuseSpan]:
    ours = token_ids[target.start : target.end]
    inside = [Span(max(s.start, target.start) - target.start, min(s.end, target.end) - target.start)
              for s in sentences if s.start < target.end and s.end > target.start]  # fmt: skip
    blocks = reusable_blocks(match.donor.token_ids, ours, inside, min_span, decode)
    return [
        ReuseSpan(
            Span(b.start, b.end).shifted(target.start), match.donor, b.donor_start, Tier.SIMILAR, match.similarity
        )
        for b in blocks
    ]


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


def _continues(left: ReuseSpan, right: ReuseSpan) -> bool:
    if left.target.end != right.target.start or left.shift != right.shift:
        return False
    if left.donor.chunk_id == right.donor.chunk_id:
        return True
    return left.donor.prefix_hash == right.donor.parent_hash
