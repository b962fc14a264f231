"""What a request of the demo came to."""

from __future__ import annotations

from dataclasses import dataclass

from kvboost.client.runtime_types import Answer, Score
from kvboost.errors import DataLossError
from kvboost.types import Tier

from ..reuse_map import ReuseMap, map_tokens
from .scenario import DemoRequest


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request and its answer, scored against plain Hugging Face."""

    request: DemoRequest
    answer: Answer
    score: Score
    context_tokens: int

    @staticmethod
    def of(request: DemoRequest, answer: Answer) -> Outcome:
        """Join a request with its answer.

        Raises
        ------
        DataLossError
            If the runtime left out the score or the token texts that were asked for.
        """
        if answer.score is None or not answer.token_texts:
            raise DataLossError("the runtime sent no score or no token texts; update it")
        return Outcome(request, answer, answer.score, request.context_tokens(answer.token_texts))

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens whose K/V came from the cache and were not recomputed."""
        return self.answer.report.reused_tokens

    @property
    def ttft_ratio(self) -> float:
        """Time to first token over that of plain Hugging Face."""
        return self.answer.report.ttft_s / self.score.full_ttft_s

    @property
    def reuse_share(self) -> float:
        """Reused tokens per context token."""
        return self.reused_tokens / self.context_tokens

    def figures(self) -> dict[str, object]:
        """Return the figures under their public names."""
        report, score = self.answer.report, self.score
        figures: dict[str, object] = {
            "name": self.request.name,
            "prompt_tokens": report.prompt_tokens,
            "context_tokens": self.context_tokens,
            "reused_tokens": self.reused_tokens,
            "reuse_share": self.reuse_share,
            "tokens_by_tier": {str(tier): report.tokens_by_tier[tier] for tier in Tier},
            "recomputed_tokens": report.recomputed_tokens,
            "recompute_ratio": report.recompute_ratio,
            "similarity": report.similarity,
            "ttft_s": report.ttft_s,
            "baseline_ttft_s": score.full_ttft_s,
            "ttft_ratio": self.ttft_ratio,
            "stages_s": dict(report.stages_s),
            "saved_s": report.saved_s,
            "kl_mean": score.kl_mean,
            "kl_first": score.kl_first,
            "top1_agreement": score.top1_agreement,
            "scored_tokens": score.positions,
            "question": self.request.question,
            "answer": self.answer.text,
            "baseline_answer": score.full_answer,
            "declined": list(report.declined),
            "fallback": report.fallback,
        }
        if self.request.expected is not None:
            figures |= {"expected": self.request.expected, "old": self.request.old}
        return figures

    def page(self) -> ReuseMap:
        """Return the reuse map."""
        report = self.answer.report
        facts = (
            f"Time to first token {report.ttft_s:.2f} s; plain Hugging Face {self.score.full_ttft_s:.2f} s: "
            f"{self.ttft_ratio:.2f} of it.",
            f"Against full prefill over {self.score.positions} answer tokens: mean KL {self.score.kl_mean:.4f}, "
            f"the same top token at {self.score.top1_agreement:.0%}.",
            f"{self.request.question}  Answer: {' '.join(self.answer.text.split())}",
        )
        title = f"{self.request.name}: {self.request.title}"
        return ReuseMap(title, map_tokens(self.answer.token_texts, report.spans), facts)
