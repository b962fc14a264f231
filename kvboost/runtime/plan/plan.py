"""Plans: which prompt tokens take cached K/V, and which are computed."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from kvboost.runtime.plan.diff import subtract
from kvboost.types import Donor, Span, Tier

_SETTLED = (Tier.CONTINUED, Tier.SUBSTITUTE)


@dataclass(frozen=True, slots=True)
class ReuseSpan:
    """Prompt tokens that take K/V from one donor.

    Attributes
    ----------
    target
        The prompt positions.
    donor
        The cached chunk; its tokens ``[offset, offset + len(target))`` equal the target's, unless the tier is
        ``substitute``.
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
        return self._part(Span(self.target.start, end))

    def outside(self, spans: Sequence[Span]) -> list[ReuseSpan]:
        """Return the parts that overlap none of ``spans``."""
        if not spans:
            return [self]
        return [self._part(part) for part in subtract(self.target, spans)]

    def _part(self, target: Span) -> ReuseSpan:
        offset = self.offset + target.start - self.target.start
        return ReuseSpan(target, self.donor, offset, self.tier, self.similarity)


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring reused spans of one donor sequence with the same shift; repair works on these.

    ``settled`` says that repair leaves it alone: the tokens are the donor's, or were repaired when first used.
    """

    span: Span
    shift: int
    lossless: bool
    settled: bool = False

    @property
    def repairable(self) -> bool:
        """Whether repair may choose tokens of it: not where K/V are right, nor where they are settled."""
        return not (self.lossless or self.settled)


@dataclass(frozen=True, slots=True)
class Plan:
    """Reuse and compute spans that cover ``[0, num_tokens)`` exactly once, each list in order.

    The last token is always computed: its logits are what the request is for.

    Attributes
    ----------
    rests_on
        The approximate tiers that the ``continued`` tokens go back to.
    """

    num_tokens: int
    reuse: tuple[ReuseSpan, ...]
    declined: tuple[str, ...] = ()
    rests_on: frozenset[Tier] = frozenset()

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
        groups: list[list[ReuseSpan]] = []
        for piece in self.reuse:
            if groups and _continues(groups[-1][-1], piece):
                groups[-1].append(piece)
            else:
                groups.append([piece])
        return tuple(_run(group[0], group[-1]) for group in groups)

    @property
    def reused_tokens(self) -> int:
        """How many tokens the plan takes from donors."""
        return sum(len(piece.target) for piece in self.reuse)

    @property
    def borrowed_tokens(self) -> int:
        """Tokens taken from donors in the cache, without those that continue an earlier request."""
        return sum(len(piece.target) for piece in self.reuse if piece.donor.chunk_id >= 0)

    @property
    def tiers(self) -> frozenset[Tier]:
        """The tiers that lend tokens, now or to what is continued."""
        return frozenset(piece.tier for piece in self.reuse) | self.rests_on

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
    def substitute_from(self) -> int | None:
        """First position that holds another wording than the prompt's; None if there is none."""
        return min((p.target.start for p in self.reuse if p.tier is Tier.SUBSTITUTE), default=None)

    @property
    def tail_start(self) -> int:
        """Start of the computed tokens after the last reused run."""
        return self.reuse[-1].target.end if self.reuse else 0

    def by_donor(self) -> dict[int, list[ReuseSpan]]:
        """Return what each donor in the cache lends, by chunk id, in order of first use."""
        lent: dict[int, list[ReuseSpan]] = {}
        for piece in self.reuse:
            if piece.donor.chunk_id >= 0:
                lent.setdefault(piece.donor.chunk_id, []).append(piece)
        return lent

    def chunk_ids(self) -> tuple[int, ...]:
        """Return the donors needed, each once, in order of first use."""
        return tuple(self.by_donor())

    def without(self, missing: AbstractSet[int], reason: str) -> Plan:
        """Return the plan with every span of the ``missing`` donors computed instead."""
        kept = tuple(piece for piece in self.reuse if piece.donor.chunk_id not in missing)
        return replace(self, reuse=kept, declined=(*self.declined, reason))

    def noting(self, reason: str) -> Plan:
        """Return the plan with one more reason why something was not reused or repaired."""
        return replace(self, declined=(*self.declined, reason))

    def leading(self) -> Plan:
        """Return the plan reduced to what covers the prompt from its start without a gap.

        Only a model that passed the gate can fill a gap; any other gets an ordinary prefill of what follows.
        """
        at = 0
        kept = []
        for piece in self.reuse:
            if piece.target.start != at:
                break
            kept.append(piece)
            at = piece.target.end
        return replace(self, reuse=tuple(kept))

    def lossless_only(self) -> Plan:
        """Return the plan reduced to its prefix tier."""
        return Plan(self.num_tokens, tuple(p for p in self.reuse if p.tier is Tier.PREFIX), self.declined)


def _run(first: ReuseSpan, last: ReuseSpan) -> Run:
    span = Span(first.target.start, last.target.end)
    return Run(span, first.shift, *_kind(first))


def _kind(piece: ReuseSpan) -> tuple[bool, bool]:
    """Return whether K/V of the piece are right, and whether they are settled."""
    return piece.tier is Tier.PREFIX, piece.tier in _SETTLED


def _continues(left: ReuseSpan, right: ReuseSpan) -> bool:
    if left.target.end != right.target.start or left.shift != right.shift:
        return False
    if _kind(left) != _kind(right):
        return False
    if left.donor.chunk_id == right.donor.chunk_id:
        return True
    return left.donor.prefix_hash == right.donor.parent_hash
