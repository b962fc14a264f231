"""From matches to a plan.

The planner trusts nobody: token ids are compared again here, a similar donor lends only the tokens that a diff
finds equal, and the sentence around a changed fact is computed whole, because K/V after a changed fact still
carry the old one. Only where the policy lists the ``substitute`` tier may a donor's tokens differ from the
prompt's, and the spans say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kvboost.policy import ReusePolicy
from kvboost.runtime.plan.diff import Decode, InOrder, subtract, token_diff
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.runtime.plan.substitute import tokens_standing_in
from kvboost.types import Match, Span, Tier

# What is longer has no sentence ends at all, and one changed word in it must not cost the whole text.
LONGEST_SENTENCE_TOKENS = 256
# The tiers whose donors an embedding nominates.
NOMINATED = frozenset({Tier.SIMILAR, Tier.SUBSTITUTE})


def build_plan(
    token_ids: Sequence[int],
    matches: Sequence[Match],
    sentences: Sequence[Span],
    policy: ReusePolicy,
    tiers: AbstractSet[Tier],
    decode: Decode,
    chunks: Sequence[Span] = (),
    sink_tokens: int = 0,
) -> Plan:
    """Decide what is reused.

    Parameters
    ----------
    token_ids
        The prompt, ``N`` tokens.
    matches
        As a cache returned them; not trusted.
    sentences
        Token spans of whole sentences, disjoint and in order, for the rule on changed facts.
    policy, tiers
        What the user allows, and what the model supports.
    decode
        Token ids to text.
    chunks
        The prompt's chunks: a nominee is compared with the whole chunk that its target ends, and its wording stands
        in for a whole one, or for what the prefix tier left of it.
    sink_tokens
        How many first tokens of a sequence the model treats as a place for attention that has nowhere to go. Those of
        a donor's sequence are not lent, nor are those of the prompt taken from elsewhere.
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
    prompt = _Prompt(token_ids, InOrder(sentences), {chunk.end: chunk for chunk in chunks}, _remembering(decode))
    for offer in _nominated_offers(prompt, matches, policy, allowed & NOMINATED):
        pieces += offer.pieces
        known += offer.known
    pieces = _without_sinks(_in_known_sentences(pieces, known, sentences, len(token_ids)), sink_tokens)
    kept = _disjoint(sorted(pieces, key=lambda p: (p.target.start, p.tier is not Tier.PREFIX)), len(token_ids) - 1)
    plan = _drop_short_runs(Plan(len(token_ids), tuple(kept), tuple(declined)), policy.min_span)
    return plan.leading() if tiers <= {Tier.PREFIX} else plan


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
class _Prompt:
    """The prompt as :func:`build_plan` got it; ``chunks`` by their end."""

    token_ids: Sequence[int]
    sentences: InOrder
    chunks: Mapping[int, Span]
    decode: Decode


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a nominee lends, and the target's tokens in sentences whose facts it shares."""

    pieces: list[ReuseSpan]
    known: list[Span]


def _nominated_offers(
    prompt: _Prompt, matches: Sequence[Match], policy: ReusePolicy, tiers: AbstractSet[Tier]
) -> list[_Offer]:
    """Return, for each target with nominees, the offer that lends most.

    Where verified tokens and another wording lend as many, the verified tokens are taken.
    """
    nominees: dict[Span, list[Match]] = {}
    for match in matches:
        inside = match.target.end <= len(prompt.token_ids)
        if tiers and match.tier is Tier.SIMILAR and match.similarity >= policy.threshold and inside:
            nominees.setdefault(match.target, []).append(match)
    offers = []
    for target, candidates in nominees.items():
        options: list[_Offer] = []
        if Tier.SIMILAR in tiers:
            options += [_equal_tokens(prompt, target, match, policy.min_span) for match in candidates]
        if Tier.SUBSTITUTE in tiers:
            options += [_other_wording(prompt, target, match) for match in candidates]
        offers.append(max(options, key=lambda option: sum(len(p.target) for p in option.pieces)))
    return offers


def _equal_tokens(prompt: _Prompt, target: Span, match: Match, min_span: int) -> _Offer:
    """Diff the donor with the whole chunk, also where the prefix tier left the target only its end.

    What was put in may equal what the prefix tier took: behind the first "1" of "11 May" the donor "1 May" is whole.
    """
    chunk = prompt.chunks.get(target.end, target)
    whole = chunk if chunk.start < target.start else target
    ours = prompt.token_ids[whole.start : whole.end]
    inside = [Span(max(s.start, whole.start) - whole.start, min(s.end, whole.end) - whole.start)
              for s in prompt.sentences.overlapping(whole)]  # fmt: skip
    found = token_diff(match.donor.token_ids, ours, inside, min_span, prompt.decode)
    pieces = []
    for block in found.blocks:
        start, end = max(whole.start + block.start, target.start), whole.start + block.end
        if start < end:
            offset = block.donor_start + start - whole.start - block.start
            pieces.append(ReuseSpan(Span(start, end), match.donor, offset, Tier.SIMILAR, match.similarity))
    return _Offer(pieces, subtract(target, [s.shifted(whole.start) for s in found.changed]))


def _other_wording(prompt: _Prompt, target: Span, match: Match) -> _Offer:
    """Let the donor's wording stand in for the rest of a chunk that begins as the donor does.

    The prompt's last chunk is never reworded: it is what the request asks. Nor does the beginning of a prompt
    stand in elsewhere: its first token says nothing and draws attention to itself.
    """
    chunk = prompt.chunks.get(target.end)
    if chunk is None or chunk.start > target.start or chunk.end == len(prompt.token_ids):
        return _Offer([], [])
    if match.donor.start == 0 < chunk.start:
        return _Offer([], [])
    begun = target.start - chunk.start
    donor_ids, ours = match.donor.token_ids, tuple(prompt.token_ids[chunk.start : chunk.end])
    count = tokens_standing_in(donor_ids, ours, prompt.decode) if donor_ids[:begun] == ours[:begun] else 0
    if count <= begun:
        return _Offer([], [])
    span = Span(target.start, chunk.start + count)
    return _Offer([ReuseSpan(span, match.donor, begun, Tier.SUBSTITUTE, match.similarity)], [target])


def _in_known_sentences(
    pieces: Sequence[ReuseSpan], known: Sequence[Span], sentences: Sequence[Span], num_tokens: int
) -> list[ReuseSpan]:
    """Take approximate tokens out of sentences that reach into a chunk with a changed fact, or with no donor.

    A sentence longer than a chunk goes on in the next one, whose own tokens may all be equal. Another wording
    is taken whole or not at all.
    """
    seen = bytearray(num_tokens)
    for span in known:
        end = min(span.end, num_tokens)
        seen[span.start : end] = b"\1" * (end - span.start)
    unknown = InOrder([s for s in sentences if len(s) <= LONGEST_SENTENCE_TOKENS and 0 in seen[s.start : s.end]])
    kept: list[ReuseSpan] = []
    for piece in pieces:
        parts = [piece] if piece.tier is Tier.PREFIX else piece.outside(unknown.overlapping(piece.target))
        kept += parts if piece.tier is not Tier.SUBSTITUTE or parts == [piece] else []
    return kept


def _without_sinks(pieces: Sequence[ReuseSpan], sink_tokens: int) -> list[ReuseSpan]:
    """Leave the first tokens of sequences out of approximate reuse.

    A model whose prompts begin with no token of their own makes a sink of the text's first tokens (Xiao et al.,
    "Efficient Streaming Language Models with Attention Sinks", 2023). Elsewhere such K/V draw attention to the middle
    of the prompt, and what stands first without them has no sink.
    """
    kept: list[ReuseSpan] = []
    for piece in pieces:
        first = 0
        if piece.tier is not Tier.PREFIX:
            first = max(sink_tokens - (piece.donor.start + piece.offset), sink_tokens - piece.target.start, 0)
        if first == 0 or (first < len(piece.target) and piece.tier is not Tier.SUBSTITUTE):
            kept += piece.outside([Span(piece.target.start, piece.target.start + first)]) if first else [piece]
    return kept


def _remembering(decode: Decode) -> Decode:
    """Return ``decode`` with a memory: nominees of one chunk differ from it at the same words."""
    known: dict[tuple[int, ...], str] = {}

    def remembered(token_ids: Sequence[int]) -> str:
        key = tuple(token_ids)
        text = known.get(key)
        if text is None:
            text = known[key] = decode(key)
        return text

    return remembered


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
    among = InOrder(short)
    kept = [piece for piece in plan.reuse if not among.overlapping(piece.target)]
    return Plan(plan.num_tokens, tuple(kept), plan.declined)
