"""A chat over re-ordered documents, turn by turn: what is reused, what is repaired, what it costs and what it loses."""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from evals import _arguments
from evals._arguments import size
from evals._bench import Bench, Deadline, Session
from evals._documents import Document, draw, own_documents
from evals._main import Eval, Result, run
from evals._plots import COLOURS, figure
from evals._prompts import SYSTEM, chat, prompt
from evals._table import table
from evals._tasks import DONOR_QUESTION
from kvboost.reuse import ReuseReport
from kvboost.runtime.tools.score import Loss
from kvboost.types import Tier
from services.progress import bar

_COLUMNS = (
    "turn", "prompt_tokens", "reused_share", "continued_share", "recomputed_tokens", "ttft_ratio", "ttft_over_prefix",
    "kl_mean", "top1_agreement", "same_again", "n",
)  # fmt: skip
_QUESTIONS = (
    "What does the document '{title}' say?",
    "And what does it say about exceptions, if anything?",
    "Give one example for that.",
    "Which of the other documents is closest to it?",
    "Say all of that in one sentence.",
    "What is left out in that sentence?",
)
_WARM_UP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one chat.

    Attributes
    ----------
    prefix_ttft_s
        Of the same turn where everything before it is in the prefix tier.
    same_again
        Whether the same request, twice more, gave one answer.
    """

    report: ReuseReport
    loss: Loss
    full_ttft_s: float
    prefix_ttft_s: float
    same_again: bool


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Play every chat over a cache that holds its documents in another order."""
    items = size(args, "items", 2, 6)
    documents = size(args, "documents", 5, 5)
    tokens = size(args, "document_tokens", 250, 250)
    answer_tokens = size(args, "answer_tokens", 24, 32)
    turns = min(args.turns or (3 if args.quick else 5), len(_QUESTIONS))
    pool = own_documents(bench.tokenizer, tokens)
    rng = random.Random(args.seed)
    deadline = Deadline(args.quick)
    played: dict[int, list[Turn]] = defaultdict(list)
    for _ in bar(range(items), "chats", total=items, unit="chat"):
        before = draw(rng, pool, documents)
        now = before
        while now == before:
            now = rng.sample(before, len(before))
        if not deadline.passed():
            for number, turn in enumerate(_play(bench, before, now, turns, answer_tokens), 1):
                played[number].append(turn)
    return {
        "rows": [_row(number, of_it) for number, of_it in played.items()],
        "default_policy": asdict(bench.config.policy),
        "sizes": {"items": items, "documents": documents, "document_tokens": tokens, "answer_tokens": answer_tokens},
        "stopped_early": deadline.stopped,
    }


def _play(
    bench: Bench, before: Sequence[Document], now: Sequence[Document], turns: int, answer_tokens: int
) -> list[Turn]:
    """Play one chat twice: over re-ordered documents, and with all that comes before a turn in the prefix tier."""
    policy = replace(bench.policy, continuing=True)
    with bench.session(policy=policy) as session:
        session.full(prompt(bench.tokenizer, before, DONOR_QUESTION)[:_WARM_UP_TOKENS], 1)
        session.store(prompt(bench.tokenizer, before, DONOR_QUESTION))
        prompts, found = _chat(bench, session, now, turns, answer_tokens)
    with bench.session(policy=replace(policy, tiers=(Tier.PREFIX,))) as session:
        session.store(prompt(bench.tokenizer, now, DONOR_QUESTION))
        ttfts_s = [session.chat(ids, answer_tokens)[1].ttft_s for ids in prompts]
    return [replace(turn, prefix_ttft_s=ttft_s) for turn, ttft_s in zip(found, ttfts_s, strict=True)]


def _chat(
    bench: Bench, session: Session, documents: Sequence[Document], turns: int, answer_tokens: int
) -> tuple[list[list[int]], list[Turn]]:
    blocks = [f"Document: {each.title}\n{each.text}" for each in documents]
    asked = [question.format(title=documents[0].title) for question in _QUESTIONS[:turns]]
    messages = [{"role": "system", "content": SYSTEM}]
    prompts, found = [], []
    for number, question in enumerate(asked):
        content = "\n\n".join([*blocks, f"Question: {question}"]) if number == 0 else question
        messages.append({"role": "user", "content": content})
        ids = chat(bench.tokenizer, messages)
        full = session.full(ids, answer_tokens)
        answer, report = session.chat(ids, answer_tokens)
        again = {session.answer(ids, answer_tokens)[0] for _ in range(2)}
        measured = session.measure(ids, full, None)
        found.append(Turn(report, measured.loss, full.ttft_s, 0.0, len(again) == 1))
        prompts.append(ids)
        messages.append(
            {"role": "assistant", "content": bench.tokenizer.decode(list(answer), skip_special_tokens=True)}
        )
    return prompts, found


def _row(number: int, played: Sequence[Turn]) -> dict[str, Any]:
    reports = [turn.report for turn in played]
    tokens = sum(report.prompt_tokens for report in reports)
    return {
        "turn": number,
        "prompt_tokens": round(mean(report.prompt_tokens for report in reports)),
        "reused_share": sum(report.reused_tokens for report in reports) / tokens,
        "continued_share": sum(report.tokens_by_tier[Tier.CONTINUED] for report in reports) / tokens,
        "recomputed_tokens": mean(report.recomputed_tokens for report in reports),
        "ttft_ratio": median(turn.report.ttft_s / turn.full_ttft_s for turn in played),
        "ttft_over_prefix": median(turn.report.ttft_s / turn.prefix_ttft_s for turn in played),
        "kl_mean": mean(turn.loss.kl_mean for turn in played),
        "top1_agreement": mean(turn.loss.top1_agreement for turn in played),
        "same_again": mean(float(turn.same_again) for turn in played),
        "n": len(played),
    }


def _draw(result: Mapping[str, Any], path: Path) -> None:
    rows = result["rows"]
    turns = [row["turn"] for row in rows]
    with figure(path, "A chat over re-ordered documents", columns=3) as axes:
        for axis, key, title in (
            (axes[0], "reused_share", "Share of prompt tokens reused"),
            (axes[1], "ttft_ratio", "Time to first token / full prefill's"),
            (axes[2], "kl_mean", "Mean KL to full prefill (nats)"),
        ):
            axis.plot(turns, [row[key] for row in rows], color=COLOURS[0], marker="o")
            axis.set_title(title)
            axis.set_xlabel("turn")
            axis.set_ylim(bottom=0.0)
            axis.xaxis.get_major_locator().set_params(integer=True)


def _table(result: Result) -> str:
    note = "\ntime was up: fewer chats than asked for" if result["stopped_early"] else ""
    return table(result["rows"], _COLUMNS) + note


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("ragchat", __doc__ or "")
    made.add_argument("--turns", type=int, metavar="N", help="turns per chat (default: 5; 3 with --quick)")
    return made


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; ``bench`` stands in for the model that the arguments name."""
    return run(Eval("ragchat", _parser(), measure, _table, _draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
