"""Several runtimes, each a process, over one cache server or each with a cache of its own: requests per second."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from transformers import PreTrainedTokenizerBase

from evals import _arguments
from evals._arguments import size
from evals._bench import Bench, Deadline
from evals._corpus import Corpus
from evals._documents import Document
from evals._main import Eval, Result, run
from evals._plots import COLOURS, figure
from evals._prompts import prompt
from evals._served import cache_server
from evals._table import table
from evals._workers import worker
from services.progress import bar

_COLUMNS = (
    "runtimes", "caches", "requests", "requests_per_s", "prompt_tokens_per_s", "answer_tokens_per_s", "hit_share",
    "ttft_s", "fallbacks", "repetitions",
)  # fmt: skip
_QUESTIONS = (
    "What is the first document about?",
    "Which of the documents speaks of errors?",
    "Name a rule from one of them.",
    "Which words need an explanation?",
)
_CACHES = ("shared", "own")
_QUICK_RUN_S = 15.0  # what one arrangement takes, most of it to start
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Arrangement:
    """``runtimes`` processes, with caches that are ``shared`` (one server), or each its ``own``."""

    runtimes: int
    caches: str


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Serve the same requests in every arrangement, dealt out in turns; each starts with empty caches."""
    requests = size(args, "items", 12, 48)
    documents = size(args, "documents", 3, 3)
    answer_tokens = size(args, "answer_tokens", 4, 16)
    asked = _requests(bench.tokenizer, requests, documents, size(args, "document_tokens", 150, 300), args.seed)
    repetitions = args.repetitions or (1 if args.quick else 3)
    arrangements = [Arrangement(n, caches) for n in args.runtimes or (1, 2) for caches in args.caches or _CACHES]
    name = bench.model.config._name_or_path
    model = str(Path(name).resolve()) if Path(name).is_dir() else name
    settings = {
        "model": model,
        "threads": args.threads or 1,
        "embedder": args.embedder or bench.config.embedder.model,
    }
    deadline = Deadline(args.quick)
    rng = random.Random(f"{args.seed} order")
    schedule = [each for _ in range(repetitions) for each in rng.sample(arrangements, len(arrangements))]
    taken: dict[Arrangement, list[dict[str, Any]]] = {each: [] for each in arrangements}
    for each in bar(schedule, "arrangements", total=len(schedule), unit="run"):
        if any(taken.values()) and deadline.passed(_QUICK_RUN_S):
            break
        taken[each].append(_serve(each, asked, answer_tokens, settings))
    return {
        "rows": [_row(each, runs) for each, runs in taken.items() if runs],
        "sizes": {"requests": requests, "documents": documents, "answer_tokens": answer_tokens},
        "stopped_early": deadline.stopped,
    }


def _requests(
    tokenizer: PreTrainedTokenizerBase, count: int, documents: int, document_tokens: int, seed: int
) -> list[list[int]]:
    """Return prompts over a pool of documents, some asked for more often than others, in any order."""
    rng = random.Random(f"{seed} throughput")
    corpus = Corpus(tokenizer, seed)
    pool = [Document(f"Part {n}", corpus.take(document_tokens)) for n in range(4 * documents)]
    weights = [1.0 / (rank + 1) for rank in range(len(pool))]
    made = []
    for _ in range(count):
        drawn: list[Document] = []
        while len(drawn) < documents:
            one = rng.choices(pool, weights)[0]
            if one not in drawn:
                drawn.append(one)
        made.append(prompt(tokenizer, drawn, rng.choice(_QUESTIONS)))
    return made


def _serve(
    arrangement: Arrangement, asked: Sequence[list[int]], answer_tokens: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the sums over all runtimes, and the time until the last one was done."""
    with ExitStack() as stack:
        address = ""
        if arrangement.caches == "shared":
            address, _ = stack.enter_context(cache_server(settings["embedder"]))
        command = [sys.executable, "-m", "evals._throughput_worker", json.dumps({**settings, "address": address})]
        running = [stack.enter_context(worker(f"runtime {i}", command, _ROOT)) for i in range(arrangement.runtimes)]
        for each in running:
            each.hear()
        start = time.perf_counter()
        for i, each in enumerate(running):
            each.tell({"prompts": asked[i :: len(running)], "new_tokens": answer_tokens})
        answers = [each.hear() for each in running]
        total = time.perf_counter() - start
    sums = {
        name: sum(answer[name] for answer in answers)
        for name in ("requests", "answer_tokens", "prompt_tokens", "reused_tokens", "fallbacks")
    }
    return {**sums, "seconds": total, "ttft_s": [ttft for answer in answers for ttft in answer["ttft_s"]]}


def _row(arrangement: Arrangement, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    per_s = [each["requests"] / each["seconds"] for each in runs]
    return {
        "runtimes": arrangement.runtimes,
        "caches": arrangement.caches,
        "requests": runs[0]["requests"],
        "requests_per_s": median(per_s),
        "requests_per_s_range": [min(per_s), max(per_s)],
        "prompt_tokens_per_s": median(each["prompt_tokens"] / each["seconds"] for each in runs),
        "answer_tokens_per_s": median(each["answer_tokens"] / each["seconds"] for each in runs),
        "hit_share": median(each["reused_tokens"] / each["prompt_tokens"] for each in runs),
        "ttft_s": median(ttft for each in runs for ttft in each["ttft_s"]),
        "fallbacks": sum(each["fallbacks"] for each in runs),
        "repetitions": len(runs),
    }


def _table(result: Result) -> str:
    note = "\ntime was up: fewer runs than asked for" if result["stopped_early"] else ""
    return table(result["rows"], _COLUMNS) + note


def _draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw requests per second and hit share by arrangement."""
    rows = result["rows"]
    names = [f"{row['runtimes']} runtime{'s' * (row['runtimes'] > 1)}, {row['caches']}" for row in rows]
    with figure(path, "Several runtimes, one cache", columns=2) as axes:
        for axis, key, title in (
            (axes[0], "requests_per_s", "Requests per second"),
            (axes[1], "hit_share", "Share of prompt tokens reused"),
        ):
            axis.barh(names, [row[key] for row in rows], color=COLOURS[0])
            axis.invert_yaxis()
            axis.set_title(title)


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("throughput", __doc__ or "")
    made.add_argument("--runtimes", nargs="+", type=int, metavar="N", help="numbers of runtimes (default: 1 2)")
    made.add_argument("--caches", nargs="+", choices=_CACHES, help="one server for all, or a cache in each (both)")
    made.add_argument("--repetitions", type=int, metavar="N", help="runs of each arrangement (default: 3; 1 quick)")
    return made


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; the model must be a local directory or a hub id, since each runtime loads it."""
    return run(Eval("throughput", _parser(), measure, _table, _draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
