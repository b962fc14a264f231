"""What a request reused, and what it cost: the same value in the runtime and at its gRPC client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvboost.types import Handover, Span, Tier


@dataclass(frozen=True, slots=True)
class TierSpan:
    """Prompt tokens of one tier.

    Attributes
    ----------
    similarity
        1.0 unless an embedding nominated the donor.
    repaired
        Whether the tokens had a donor and were recomputed all the same; the tier is then ``computed``.
    """

    span: Span
    tier: Tier
    similarity: float = 1.0
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """One request.

    Attributes
    ----------
    prompt_tokens
        Tokens of the prompt, without padding.
    tokens_by_tier
        Tokens whose K/V came from the cache, by tier; everything that this request computed, repair
        included, is under ``computed``. Sums to ``prompt_tokens``.
    recomputed_tokens
        Tokens that had a donor and were recomputed all the same; part of ``computed``.
    recompute_ratio
        Repair's token passes through all layers, selection passes included, per token that had a donor.
    ttft_s
        From the call to the first token's logits, everything included.
    stages_s
        Where the time before the model's own pass went, by stage.
    declined
        Why something that could have been reused was not.
    fallback
        The fault that made the request fall back to full prefill, or None.
    similarity
        Lowest similarity of a donor that lent tokens; 1.0 if none was nominated by embedding.
    spans
        The prompt in order, by tier.
    saved_s
        Estimated seconds of prefill that reuse saved, less what fetch and repair took; negative where it cost more than
        it saved, None where this machine was not calibrated.
    handover
        How the reused K/V came here, the slowest way if there were several; None if none did.
    rows
        The reports of the rows of a batch; empty for a single prompt.
    """

    prompt_tokens: int
    tokens_by_tier: Mapping[Tier, int]
    recomputed_tokens: int = 0
    recompute_ratio: float = 0.0
    ttft_s: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)
    declined: tuple[str, ...] = ()
    fallback: str | None = None
    similarity: float = 1.0
    spans: tuple[TierSpan, ...] = ()
    saved_s: float | None = None
    handover: Handover | None = None
    rows: tuple[ReuseReport, ...] = ()

    @property
    def reused_tokens(self) -> int:
        """Tokens whose K/V came from the cache and were not recomputed."""
        return self.prompt_tokens - self.tokens_by_tier.get(Tier.COMPUTED, 0)

    @property
    def lossless(self) -> bool:
        """Whether the K/V are those of an ordinary prefill."""
        return all(tier in (Tier.PREFIX, Tier.COMPUTED) or n == 0 for tier, n in self.tokens_by_tier.items())
