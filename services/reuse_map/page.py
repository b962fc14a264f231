"""What a reuse map shows, before it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvboost.errors import InputError
from kvboost.types import Span, Tier

HEAD_TOKENS = 90
TAIL_TOKENS = 60
MIN_HIDDEN_TOKENS = 60


class TierRun(Protocol):
    """A stretch of one tier, as the reports of the runtime and of its client have it."""

    @property
    def span(self) -> Span: ...
    @property
    def tier(self) -> Tier: ...
    @property
    def similarity(self) -> float: ...
    @property
    def repaired(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class MapToken:
    """One prompt token.

    Attributes
    ----------
    text
        What it stands for; empty where a later token completes the character.
    similarity
        Cosine of the donor in the ``similar`` tier; 1.0 otherwise.
    repaired
        Whether it had a donor and was recomputed all the same; its tier is ``computed``.
    """

    text: str
    tier: Tier
    similarity: float = 1.0
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class Passage:
    """Neighbouring tokens ``[start, end)`` that are drawn as text, or only counted."""

    start: int
    end: int
    shown: bool

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ReuseMap:
    """A prompt, in order, with a title and a few lines of figures above it."""

    title: str
    tokens: tuple[MapToken, ...]
    facts: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[Tier, int]:
        """Tokens by tier, repaired ones under ``computed``; every tier is named."""
        counts = dict.fromkeys(Tier, 0)
        for token in self.tokens:
            counts[token.tier] += 1
        return counts

    @property
    def repaired_tokens(self) -> int:
        """Tokens that had a donor and were recomputed all the same."""
        return sum(token.repaired for token in self.tokens)

    @property
    def legend(self) -> tuple[tuple[Tier, int], ...]:
        """The tiers to explain: those that occur, and always ``computed``; repaired tokens are not counted in it."""
        counts = self.counts
        counts[Tier.COMPUTED] -= self.repaired_tokens
        return tuple((tier, n) for tier, n in counts.items() if n or tier is Tier.COMPUTED)

    def share(self, tokens: int) -> str:
        """Return ``tokens`` as a percentage of the prompt."""
        return f"{tokens / max(len(self.tokens), 1):.1%}"

    def passages(self) -> tuple[Passage, ...]:
        """Return the prompt in order; the middle of a long stretch of one tier is not shown.

        A repaired token belongs to the stretch that it stands in.
        """
        passages: list[Passage] = []
        for start, end in _stretches(self.surroundings()):
            if end - start < HEAD_TOKENS + TAIL_TOKENS + MIN_HIDDEN_TOKENS:
                passages.append(Passage(start, end, True))
                continue
            head, tail = start + HEAD_TOKENS, end - TAIL_TOKENS
            passages += [Passage(start, head, True), Passage(head, tail, False), Passage(tail, end, True)]
        return tuple(passages)

    def stretches(self) -> tuple[Passage, ...]:
        """Return maximal runs of tokens of one tier, repaired tokens apart."""
        return tuple(Passage(a, b, True) for a, b in _stretches([(t.tier, t.repaired) for t in self.tokens]))

    def surroundings(self) -> list[Tier]:
        """Return the tier of each token, and for a repaired one that of the stretch that it stands in."""
        tiers: list[Tier] = []
        for token in self.tokens:
            tiers.append(tiers[-1] if token.repaired and tiers else token.tier)
        return tiers


def map_tokens(texts: Sequence[str], spans: Sequence[TierRun]) -> tuple[MapToken, ...]:
    """Join token texts with the tiers of a report.

    Raises
    ------
    InputError
        If ``spans`` do not cover the ``len(texts)`` tokens exactly once, in order.
    """
    tokens: list[MapToken] = []
    for run in spans:
        if run.span.start != len(tokens) or run.span.end > len(texts):
            raise InputError(f"spans must cover the {len(texts)} tokens in order; one is {run.span}")
        own = texts[run.span.start : run.span.end]
        tokens += [MapToken(text, run.tier, run.similarity, run.repaired) for text in own]
    if len(tokens) != len(texts):
        raise InputError(f"spans cover {len(tokens)} tokens, the prompt has {len(texts)}")
    return tuple(tokens)


def _stretches(keys: Sequence[object]) -> list[tuple[int, int]]:
    stretches: list[tuple[int, int]] = []
    start = 0
    for position in range(1, len(keys) + 1):
        if position == len(keys) or keys[position] != keys[start]:
            stretches.append((start, position))
            start = position
    return stretches
