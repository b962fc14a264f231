"""What the runtime service is asked and what it answers, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvboost.reuse import ReuseReport
from kvboost.types import Namespace, Tier


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a chat; ``role`` is ``system``, ``user`` or ``assistant``."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class TierAudit:
    """How one approximate tier stands with a runtime's audits.

    Attributes
    ----------
    audits, violations
        Since the runtime started.
    mean_kl
        Over the newest audits, in nats; None without any.
    threshold, recompute_ratio
        How strictly the tier is served at present.
    rate_bounds
        Of the share of violations at this setting.
    off
        Whether it is switched off at present.
    """

    tier: Tier
    audits: int
    violations: int
    mean_kl: float | None
    threshold: float
    recompute_ratio: float
    rate_bounds: tuple[float, float]
    off: bool


@dataclass(frozen=True, slots=True)
class BatchState:
    """How many requests a runtime answers at once, and how many there are now.

    Attributes
    ----------
    max_queue
        Requests that may wait beside the ``max_batch`` that are answered.
    obstacle
        Why its model answers one request after the other all the same; empty if it does not.
    """

    max_batch: int
    max_queue: int
    running: int
    waiting: int
    obstacle: str


@dataclass(frozen=True, slots=True)
class WarmReceipt:
    """What became of one document that was put into the cache before the first question about it.

    Attributes
    ----------
    index
        Which of the documents.
    tokens
        With the prefix and the begin token.
    reused_tokens
        Were cached already, in this context.
    stored_chunks, refused_chunks
        New chunks that the cache keeps, and those that it does not: stored under enough histories, or too large.
    seconds
        From the call's arrival, or the receipt before, until the chunks were stored.
    """

    index: int
    tokens: int
    reused_tokens: int
    stored_chunks: int
    refused_chunks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """What a runtime says of itself.

    Attributes
    ----------
    max_context_tokens
        Longest prompt and answer together.
    cache_address
        Where its cache is; empty for one in its own process.
    limits
        Why tiers are missing.
    counters
        Totals since it started.
    audits
        Its approximate tiers.
    batch
        How many requests it answers at once; None from one that does not say.
    cache_fault
        Why it leaves its cache alone at present; empty while it asks it.
    """

    version: str
    model: str
    namespace: Namespace
    max_context_tokens: int
    cache_address: str
    tiers: tuple[Tier, ...]
    limits: tuple[str, ...]
    counters: Mapping[str, int]
    audits: tuple[TierAudit, ...] = ()
    batch: BatchState | None = None
    cache_fault: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and how likely it was: the log-softmax of the model's logits, before temperature and filters.

    Attributes
    ----------
    text
        By itself; U+FFFD for what is no whole character.
    utf8
        Its bytes, part of a character or whole ones; None where the tokenizer does not tell them.
    logprob
        Natural logarithm of its probability.
    """

    id: int
    text: str
    utf8: bytes | None
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """One answer token, and the text that it completes.

    Attributes
    ----------
    logprob, top_logprobs
        If they were asked for: the token itself (None for the end token), and the likeliest ones in its place.
    """

    id: int
    text: str
    logprob: TokenLogprob | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """Reuse against full prefill, teacher-forced on full prefill's greedy answer.

    Attributes
    ----------
    kl_mean, kl_first
        KL(full || reuse) in nats, over the answer and at its first token.
    top1_agreement
        Share of ``positions`` at which both put the same token first.
    first_divergence
        First position where the two greedy answers differ, or None.
    full_ttft_s, full_answer
        Time to first token and answer of full prefill.
    """

    kl_mean: float
    kl_first: float
    top1_agreement: float
    first_divergence: int | None
    positions: int
    full_ttft_s: float
    full_answer: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The last event of an answer.

    Attributes
    ----------
    reason
        ``stop`` or ``length``.
    text
        The rest of the answer's text, that the last tokens held back.
    score
        If it was asked for.
    token_texts
        If they were asked for: the text that each prompt token completes.
    """

    reason: str
    new_tokens: int
    report: ReuseReport
    score: Score | None
    text: str
    token_texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; the other fields are those of :class:`Finish`."""

    text: str
    token_ids: tuple[int, ...]
    reason: str
    report: ReuseReport
    score: Score | None
    token_texts: tuple[str, ...]
