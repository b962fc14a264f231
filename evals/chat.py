"""Reuse by turn in multi-turn chats, and whether the answers are those of full prefill."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from evals import _arguments
from evals._arguments import size
from evals._bench import Bench, Deadline, Session
from evals._chats import Chat, ChatSet, chat_sets
from evals._main import Eval, Result, run
from evals._plots import COLOURS, MARKERS, figure
from evals._prompts import chat as to_ids
from evals._table import table
from evals._tasks import Sizes
from kvboost.reuse import ReuseReport
from kvboost.runtime.tools.score import FullPrefill
from kvboost.types import Tier
from services.progress import bar

_COLUMNS = (
    "chats", "turn", "prompt_tokens", "reuse_share", "prefix_share", "recompute_ratio", "same_as_full",
    "ttft_ratio", "n",
)  # fmt: skip
_WARM_UP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Played:
    """One turn of one chat."""

    report: ReuseReport
    same_as_full: bool
    ttft_ratio: float


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Play every chat, with a cache of its own or, with ``--shared``, one cache for all."""
    sizes = Sizes(size(args, "items", 3, 10), size(args, "documents", 2, 3), size(args, "document_tokens", 200, 300))
    answer_tokens = size(args, "answer_tokens", 24, 48)
    turns = args.turns or (6 if args.quick else 8)
    sets = chat_sets(bench.tokenizer, sizes, turns, args)
    deadline = Deadline(args.quick)
    played: dict[tuple[str, int], list[Played]] = defaultdict(list)
    for group in sets:
        for number, turn in _play_all(bench, group, answer_tokens, deadline, args.shared):
            played[group.name, number].append(turn)
    return {
        "turns": [_row(name, turn, all_of_it) for (name, turn), all_of_it in played.items()],
        "default_policy": asdict(bench.config.policy),
        "shared_cache": args.shared,
        "sizes": {**asdict(sizes), "turns": turns, "answer_tokens": answer_tokens},
        "sources": {group.name: group.source for group in sets},
        "stopped_early": deadline.stopped,
    }


def _play_all(
    bench: Bench, group: ChatSet, answer_tokens: int, deadline: Deadline, shared: bool
) -> Iterator[tuple[int, Played]]:
    shown = bar(group.chats, f"chats of {group.name}", total=len(group.chats), unit="chat")
    if shared:
        with bench.session() as session:
            for chat in shown:
                yield from _play(bench, session, chat, answer_tokens, deadline)
        return
    for chat in shown:
        with bench.session() as session:
            yield from _play(bench, session, chat, answer_tokens, deadline)


def _play(
    bench: Bench, session: Session, chat: Chat, answer_tokens: int, deadline: Deadline
) -> Iterator[tuple[int, Played]]:
    """Yield turn by turn; a chat ends where the model's context does."""
    messages = [{"role": "system", "content": chat.system}]
    limit = getattr(bench.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    for number, turn in enumerate(chat.turns, 1):
        messages.append({"role": "user", "content": turn.user})
        ids = to_ids(bench.tokenizer, messages)
        if deadline.passed() or (limit is not None and len(ids) + answer_tokens > limit):
            return
        if number == 1:
            session.full(ids[:_WARM_UP_TOKENS], 1)  # the first pass of a process is slower than all others
        (answer, report), full = _both(bench, session, ids, answer_tokens, full_first=number % 2 == 1)
        yield number, Played(report, answer == full.answer_ids, report.ttft_s / full.ttft_s)
        own = bench.tokenizer.decode(list(answer), skip_special_tokens=True)
        messages.append({"role": "assistant", "content": own if turn.reply is None else turn.reply})


def _both(
    bench: Bench, session: Session, ids: list[int], answer_tokens: int, full_first: bool
) -> tuple[tuple[tuple[int, ...], ReuseReport], FullPrefill]:
    """Answer with reuse and without; who goes first changes by turn, so that neither is favoured."""
    if full_first:
        full = session.full(ids, answer_tokens)
        return session.chat(ids, answer_tokens, bench.policy), full
    answered = session.chat(ids, answer_tokens, bench.policy)
    return answered, session.full(ids, answer_tokens)


def _row(name: str, turn: int, played: Sequence[Played]) -> dict[str, Any]:
    reports = [each.report for each in played]
    tokens = sum(report.prompt_tokens for report in reports)
    return {
        "chats": name,
        "turn": turn,
        "prompt_tokens": round(mean(report.prompt_tokens for report in reports)),
        "reuse_share": sum(report.reused_tokens for report in reports) / tokens,
        "prefix_share": sum(report.tokens_by_tier[Tier.PREFIX] for report in reports) / tokens,
        "recompute_ratio": mean(report.recompute_ratio for report in reports),
        "same_as_full": mean(float(each.same_as_full) for each in played),
        "ttft_ratio": median(each.ttft_ratio for each in played),
        "n": len(played),
    }


def _draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw reuse and identical answers by turn."""
    names = list(dict.fromkeys(row["chats"] for row in result["turns"]))
    with figure(path, "Multi-turn chats: reuse by turn", columns=2) as axes:
        for axis, key, title in (
            (axes[0], "reuse_share", "Share of prompt tokens reused"),
            (axes[1], "same_as_full", "Share of answers equal to full prefill's"),
        ):
            for i, name in enumerate(names):
                own = [row for row in result["turns"] if row["chats"] == name]
                axis.plot(
                    [row["turn"] for row in own],
                    [row[key] for row in own],
                    color=COLOURS[i % len(COLOURS)],
                    marker=MARKERS[i % len(MARKERS)],
                    label=name,
                )
            axis.set_title(title)
            axis.set_xlabel("turn")
            axis.set_ylim(-0.03, 1.03)
            axis.xaxis.get_major_locator().set_params(integer=True)
        axes[0].legend(loc="lower right")


def _table(result: Result) -> str:
    note = "\ntime was up: fewer turns than asked for" if result["stopped_early"] else ""
    return table(result["turns"], _COLUMNS) + note


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("chat", __doc__ or "")
    made.add_argument("--turns", type=int, metavar="N", help="turns per chat, at most (default: 8; 6 with --quick)")
    made.add_argument("--shared", action="store_true", help="one cache for all chats, instead of an empty one for each")
    return made


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; ``bench`` stands in for the model that the arguments name."""
    return run(Eval("chat", _parser(), measure, _table, _draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
