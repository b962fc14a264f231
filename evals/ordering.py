"""Retrieved documents in the order given or a cache-aware one, with the lossless prefix alone or shifted reuse too."""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from evals import _arguments
from evals._arguments import size
from evals._bench import Bench, Deadline, Measurement, Session
from evals._clocks import twin
from evals._documents import own_documents
from evals._main import Eval, Result, run
from evals._plots import COLOURS, figure
from evals._prompts import read_prompts
from evals._retrieval import Asked, prompt_text, repeated_share, traffic
from evals._table import table
from kvboost.errors import InputError
from kvboost.ordering import document_token_ids, order_documents
from kvboost.policy import ReusePolicy
from kvboost.runtime.tools.score import FullPrefill
from kvboost.types import Tier
from services.progress import bar

_COLUMNS = (
    "order", "reuse", "reuse_share", "prefix", "exact", "similar", "computed", "ttft_ratio", "order_s", "moved_share",
    "kl_mean", "top1_agreement", "n",
)  # fmt: skip
_WARM_UP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Way:
    """One of the ways that are compared."""

    ordered: bool
    reuse: str
    policy: ReusePolicy


@dataclass(frozen=True, slots=True)
class Served:
    """One request, served in one way."""

    measured: Measurement
    full_ttft_s: float
    order_s: float
    moved: bool


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Play the same requests in every way side by side, each with a cache of its own that is empty at first."""
    sizes = {
        "requests": size(args, "items", 14, 60),
        "documents": size(args, "documents", 3, 4),
        "document_tokens": size(args, "document_tokens", 120, 300),
        "answer_tokens": size(args, "answer_tokens", 8, 24),
        "pool": args.pool or (12 if args.quick else 40),
    }
    requests = _requests(bench, args, sizes)
    deadline = Deadline(args.quick)
    served = _play(bench, requests, sizes["answer_tokens"], deadline)
    played = requests[: min(map(len, served.values()))]
    return {
        "rows": [_row(way, own[: len(played)]) for way, own in served.items()],
        "repeated_share": repeated_share(played),
        "zipf": args.zipf,
        "default_policy": asdict(bench.config.policy),
        "sizes": {**sizes, "requests": len(played)},
        "source": "pydoc_data.topics of the standard library" if args.prompts is None else "--prompts",
        "stopped_early": deadline.stopped,
    }


def _requests(bench: Bench, args: argparse.Namespace, sizes: Mapping[str, int]) -> list[Asked]:
    """Return the user's requests in their order, or traffic made here."""
    if args.data is not None:
        raise InputError("--data is not used here: its sets say nothing of how often documents return; leave it out")
    if args.prompts is not None:
        asked = [Asked(each.documents, each.text) for each in read_prompts(args.prompts)]
        return asked[: args.items]
    pool = own_documents(bench.tokenizer, sizes["document_tokens"])[: sizes["pool"]]
    if len(pool) < sizes["documents"]:
        raise InputError(f"--pool {sizes['pool']} leaves {len(pool)} documents, fewer than --documents; raise it")
    return traffic(pool, sizes["requests"], sizes["documents"], args.zipf, args.seed)


def _ways(bench: Bench) -> list[Way]:
    lossless = replace(bench.policy, tiers=(Tier.PREFIX,))
    kinds = (("prefix only", lossless), ("shifted", bench.policy))
    return [Way(ordered, name, policy) for name, policy in kinds for ordered in (False, True)]


def _play(
    bench: Bench, requests: Sequence[Asked], answer_tokens: int, deadline: Deadline
) -> Mapping[Way, list[Served]]:
    served: dict[Way, list[Served]] = defaultdict(list)
    with ExitStack() as stack:
        sessions = {way: stack.enter_context(bench.session(model=twin(bench.model))) for way in _ways(bench)}
        first = next(iter(sessions.values()))
        for asked in bar(requests, "requests", total=len(requests), unit="request"):
            if deadline.passed():
                break
            fulls: dict[tuple[int, ...], FullPrefill] = {}
            for way, session in sessions.items():
                if not served:
                    # The first pass of a process is slower than all others.
                    first.full(_token_ids(bench, asked.texts, asked.question)[:_WARM_UP_TOKENS], 1)
                served[way].append(_serve(bench, session, way, asked, answer_tokens, fulls))
    return served


def _serve(
    bench: Bench,
    session: Session,
    way: Way,
    asked: Asked,
    answer_tokens: int,
    fulls: dict[tuple[int, ...], FullPrefill],
) -> Served:
    """Serve one request and keep its K/V; ``fulls`` holds full prefills of the same request in other orders."""
    start_s = time.perf_counter()
    indices = _order(bench, session, asked) if way.ordered else tuple(range(len(asked.documents)))
    order_s = time.perf_counter() - start_s if way.ordered else 0.0
    texts = [asked.texts[i] for i in indices]
    ids = _token_ids(bench, texts, asked.question)
    if indices not in fulls:
        fulls[indices] = session.full(ids, answer_tokens)
    measured = session.measure_and_store(ids, fulls[indices], way.policy)
    return Served(measured, fulls[indices].ttft_s, order_s, indices != tuple(sorted(indices)))


def _order(bench: Bench, session: Session, asked: Asked) -> tuple[int, ...]:
    text = prompt_text(bench.tokenizer, asked.texts, asked.question)
    special = bench.tokenizer.chat_template is None
    before, documents = document_token_ids(bench.tokenizer, text, asked.texts, add_special_tokens=special)
    engine = session.engine
    return order_documents(engine.cache, engine.namespace.key, before, documents).indices


def _token_ids(bench: Bench, texts: Sequence[str], question: str) -> list[int]:
    special = bench.tokenizer.chat_template is None
    text = prompt_text(bench.tokenizer, texts, question)
    return list(bench.tokenizer(text, add_special_tokens=special)["input_ids"])


def _row(way: Way, served: Sequence[Served]) -> dict[str, Any]:
    reports = [each.measured.report for each in served]
    tokens = sum(report.prompt_tokens for report in reports)
    return {
        "order": "cache-aware" if way.ordered else "given",
        "reuse": way.reuse,
        "reuse_share": sum(report.reused_tokens for report in reports) / tokens,
        **{
            str(tier): sum(report.tokens_by_tier.get(tier, 0) for report in reports) / tokens
            for tier in (Tier.PREFIX, Tier.EXACT, Tier.SIMILAR, Tier.COMPUTED)
        },
        # What looking for the order takes belongs to the wait.
        "ttft_ratio": median((each.measured.report.ttft_s + each.order_s) / each.full_ttft_s for each in served),
        "ttft_ratio_mean": mean((each.measured.report.ttft_s + each.order_s) / each.full_ttft_s for each in served),
        "order_s": median(each.order_s for each in served),
        "moved_share": mean(each.moved for each in served),
        "kl_mean": mean(each.measured.loss.kl_mean for each in served),
        "top1_agreement": mean(each.measured.loss.top1_agreement for each in served),
        "n": len(served),
    }


def _draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw tokens by tier and the wait, a bar for each way."""
    rows = result["rows"]
    names = [f"{row['reuse']},\n{row['order']} order" for row in rows]
    with figure(path, "Retrieved documents: their order, and what is reused", columns=2) as axes:
        below = [0.0] * len(rows)
        for i, tier in enumerate(("prefix", "exact", "similar")):
            axes[0].bar(names, [row[tier] for row in rows], bottom=below, color=COLOURS[i], label=tier)
            below = [low + row[tier] for low, row in zip(below, rows, strict=True)]
        axes[0].set_title("Share of prompt tokens reused, by tier")
        axes[0].set_ylim(0, 1)
        axes[0].legend(loc="upper left")
        axes[1].bar(names, [row["ttft_ratio_mean"] for row in rows], color=COLOURS[3])
        axes[1].axhline(1.0, color="#000000", linewidth=0.8)
        axes[1].set_title("Time to first token over full prefill, mean")
        for axis in axes:
            axis.tick_params(axis="x", labelsize=7)


def _table(result: Result) -> str:
    note = "\ntime was up: fewer requests than asked for" if result["stopped_early"] else ""
    return f"{result['repeated_share']:.0%} of documents were seen before\n{table(result['rows'], _COLUMNS)}{note}"


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("ordering", __doc__ or "")
    made.add_argument(
        "--pool", type=int, metavar="N", help="documents that are retrieved from (default: 40; 12 with --quick)"
    )
    made.add_argument(
        "--zipf", type=float, default=1.0, metavar="S", help="exponent of their popularity (default: 1.0)"
    )
    return made


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; ``bench`` stands in for the model that the arguments name."""
    return run(Eval("ordering", _parser(), measure, _table, _draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
