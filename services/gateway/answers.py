"""Answers in OpenAI's form: whole, or as the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from kvboost.client.runtime_types import Finish
from kvboost.reuse import ReuseReport
from kvboost.types import Tier

from .asking import Ask


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Writes one answer; the field ``kvboost`` says what was reused, and clients that do not know it ignore it."""

    model: str
    chat: bool
    include_usage: bool
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, ask: Ask) -> AnswerForm:
        """Return the form that ``ask`` wants."""
        prefix = "chatcmpl" if ask.chat else "cmpl"
        return cls(ask.model, ask.chat, ask.include_usage, f"{prefix}-{secrets.token_hex(12)}")

    def whole(self, text: str, finish: Finish, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        said: dict[str, Any] = {"text": text}
        if self.chat:
            said = {"message": {"role": "assistant", "content": text, "refusal": None}}
        choice = {"index": 0, **said, "logprobs": logprobs, "finish_reason": finish.reason}
        return self._head(streamed=False) | {
            "choices": [choice],
            "usage": usage(finish),
            "kvboost": reuse_of(finish),
        }

    def opening(self) -> dict[str, Any] | None:
        """Return the chunk that goes before the text, if there is one."""
        return self._chunk({"role": "assistant", "content": ""}, None) if self.chat else None

    def piece(self, text: str, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the chunk of a piece of text."""
        return self._chunk({"content": text} if self.chat else text, None, logprobs)

    def closing(self, finish: Finish) -> list[dict[str, Any]]:
        """Return the last chunks; the very last one says what was reused."""
        last = self._chunk({} if self.chat else "", finish.reason)
        if not self.include_usage:
            return [last | {"kvboost": reuse_of(finish)}]
        told = self._head(streamed=True) | {"choices": [], "usage": usage(finish), "kvboost": reuse_of(finish)}
        return [last, told]

    def _chunk(
        self, said: dict[str, str] | str, reason: str | None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        key = "delta" if self.chat else "text"
        choice = {"index": 0, key: said, "logprobs": logprobs, "finish_reason": reason}
        chunk = self._head(streamed=True) | {"choices": [choice]}
        return chunk | {"usage": None} if self.include_usage else chunk

    def _head(self, streamed: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self.chat:
            kind = "chat.completion.chunk" if streamed else "chat.completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }


def usage(finish: Finish) -> dict[str, Any]:
    """Return the tokens of a request; cached ones are those whose K/V were not computed."""
    prompt, new = finish.report.prompt_tokens, finish.new_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": finish.report.reused_tokens},
    }


def reuse_of(finish: Finish) -> dict[str, Any]:
    """Return what was reused and what it cost, ready for JSON; ``runs`` cover the prompt in order."""
    report = finish.report
    told: dict[str, Any] = {
        "reused_tokens": report.reused_tokens,
        "tokens_by_tier": {str(tier): count for tier, count in report.tokens_by_tier.items()},
        "recomputed_tokens": report.recomputed_tokens,
        "recompute_ratio": report.recompute_ratio,
        "lossless": report.lossless,
        "similarity": report.similarity,
        "ttft_s": report.ttft_s,
        "stages_s": dict(report.stages_s),
        "declined": list(report.declined),
        "fallback": report.fallback,
        "runs": [{"tier": tier, "start": start, "end": end} for tier, start, end in runs(report)],
    }
    return told if finish.score is None else told | {"score": asdict(finish.score)}


def runs(report: ReuseReport) -> list[tuple[str, int, int]]:
    """Return the prompt's stretches by tier; recomputed tokens belong to the stretch that they stand in."""
    found: list[tuple[str, int, int]] = []
    for piece in report.spans:
        tier = found[-1][0] if piece.repaired and found else str(piece.tier)
        if found and found[-1][0] == tier:
            found[-1] = (tier, found[-1][1], piece.span.end)
        else:
            found.append((tier, piece.span.start, piece.span.end))
    return found


def loosest_tier(report: ReuseReport) -> Tier:
    """Return the tier that answers for a request: the loosest one that lent tokens, ``computed`` if none did."""
    order = (Tier.SUBSTITUTE, Tier.SIMILAR, Tier.EXACT, Tier.PREFIX)
    return next((tier for tier in order if report.tokens_by_tier.get(tier, 0)), Tier.COMPUTED)
