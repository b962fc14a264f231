"""Answers in OpenAI's form: whole, or as the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvboost.client.runtime_types import Finish
from kvboost.reuse import ReuseReport
from kvboost.types import Tier

from .asking import Ask, Choice


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer, whole; of a stream, without its text."""

    choice: Choice
    finish: Finish
    text: str = ""
    logprobs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Writes the answers to a request.

    The field ``kvboost`` says what was reused; clients that do not know it ignore it.
    """

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

    def whole(self, answers: Sequence[Answered]) -> dict[str, Any]:
        """Return the body of answers that are not streamed."""
        return self._head(streamed=False) | {"choices": [self._choice(one) for one in answers]} | told_of(answers)

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the chunk that goes before the text of an answer, if there is one."""
        return self._chunk(index, {"role": "assistant", "content": ""}, None) if self.chat else None

    def piece(self, index: int, text: str, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the chunk of a piece of text."""
        return self._chunk(index, {"content": text} if self.chat else text, None, logprobs)

    def end(self, index: int, finish: Finish) -> dict[str, Any]:
        """Return the chunk that ends an answer."""
        return self._chunk(index, {} if self.chat else "", finish.reason)

    def closing(self, last: dict[str, Any], answers: Sequence[Answered]) -> list[dict[str, Any]]:
        """Return the last chunks, of which ``last`` ends the last answer; the very last one says what was reused."""
        told = told_of(answers)
        if not self.include_usage:
            return [last | {"kvboost": told["kvboost"]}]
        return [last, self._head(streamed=True) | {"choices": []} | told]

    def _choice(self, one: Answered) -> dict[str, Any]:
        said: dict[str, Any] = {"text": one.text}
        if self.chat:
            said = {"message": {"role": "assistant", "content": one.text, "refusal": None}}
        return {"index": one.choice.index, **said, "logprobs": one.logprobs, "finish_reason": one.finish.reason}

    def _chunk(
        self, index: int, said: dict[str, str] | str, reason: str | None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        key = "delta" if self.chat else "text"
        choice = {"index": index, key: said, "logprobs": logprobs, "finish_reason": reason}
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


def told_of(answers: Sequence[Answered]) -> dict[str, Any]:
    """Return usage and reuse; of several answers, ``kvboost`` holds the first one's and ``choices`` all of them."""
    reused = [reuse_of(one.finish) for one in answers]
    more = {"choices": reused} if len(reused) > 1 else {}
    return {"usage": usage(answers), "kvboost": reused[0] | more}


def usage(answers: Sequence[Answered]) -> dict[str, Any]:
    """Return the tokens of a request: those of each prompt once, those of all answers.

    Cached are those whose K/V the first answer did not compute.
    """
    prompts = [one.finish.report for one in answers if one.choice.first]
    prompt, new = sum(report.prompt_tokens for report in prompts), sum(one.finish.new_tokens for one in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": sum(report.reused_tokens for report in prompts)},
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
    order = (Tier.SUBSTITUTE, Tier.SIMILAR, Tier.EXACT, Tier.CONTINUED, Tier.PREFIX)
    return next((tier for tier in order if report.tokens_by_tier.get(tier, 0)), Tier.COMPUTED)
