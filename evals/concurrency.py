"""Several streams at once on one model against the same requests one after another: tokens per second of all."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from evals import _arguments
from evals._arguments import size
from evals._bench import Bench, Deadline, Session
from evals._corpus import Corpus
from evals._documents import Document
from evals._main import Eval, Result, run
from evals._plots import COLOURS, MARKERS, figure
from evals._prompts import prompt
from evals._table import table
from kvboost.client import RuntimeClient
from kvboost.client.runtime_types import Finish
from kvboost.runtime.batching import Batch
from kvboost.runtime.serve.answer import warm_up
from kvboost.sampling import GREEDY
from kvboost.wire.address import parse_address
from services.grpc_server import start_server
from services.progress import bar
from services.runtime_server import SERVICE_NAME, RuntimeServicer, ServedModel

_COLUMNS = (
    "prompts", "streams", "requests", "tokens", "seconds", "tokens_per_s", "reuse_share", "ttft_s", "ttft_worst_s",
    "gap_s", "gap_worst_s", "same_answers",
)  # fmt: skip
_CACHED, _COMPUTED = "cached", "computed"
_QUESTIONS = ("What is this about?", "Name a rule from it.", "Which words need an explanation?", "What may go wrong?")


@dataclass(frozen=True, slots=True)
class Streamed:
    """One answer as its caller saw it; times in seconds, the first from the call."""

    token_ids: tuple[int, ...]
    first_s: float
    gaps_s: tuple[float, ...]
    reuse_share: float


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Answer the same requests with 1, 2, 4 and 8 callers at once, over gRPC."""
    requests = size(args, "items", 8, 16)
    answer_tokens = size(args, "answer_tokens", 32, 64)
    documents = size(args, "documents", 1, 2)
    document_tokens = size(args, "document_tokens", 200, 400)
    streams = args.streams or ([1, 8] if args.quick else [1, 2, 4, 8])
    stored, asked = _prompts(bench, requests, documents, document_tokens, args.seed)
    deadline = Deadline(args.quick)
    rows: list[dict[str, Any]] = []
    with bench.session() as session, _served(bench, session, max(streams)) as client:
        for ids in bar(stored, "documents", total=len(stored), unit="request"):
            session.store(ids)
        for prompts in (_CACHED, _COMPUTED):
            if deadline.passed() and rows:
                break
            alone: list[Streamed] = []
            for count in bar(streams, f"streams over {prompts} prompts", total=len(streams), unit="run"):
                answers, seconds = _run(client, asked, answer_tokens, count, prompts == _COMPUTED)
                alone = alone or answers
                rows.append(_row(prompts, count, answers, alone, seconds))
    return {
        "rows": rows,
        "ratios": _ratios(rows),
        "sizes": {
            "items": requests,
            "documents": documents,
            "document_tokens": document_tokens,
            "answer_tokens": answer_tokens,
        },
        "stopped_early": deadline.stopped,
    }


def _prompts(
    bench: Bench, count: int, documents: int, tokens: int, seed: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return requests that fill the cache, and as many others about the same documents."""
    corpus = Corpus(bench.tokenizer, seed)
    stored, asked = [], []
    for number in range(count):
        drawn = [Document("", corpus.take(tokens)) for _ in range(documents)]
        stored.append(prompt(bench.tokenizer, drawn, "What do they have in common?"))
        asked.append(prompt(bench.tokenizer, drawn[::-1], _QUESTIONS[number % len(_QUESTIONS)]))
    return stored, asked


@contextmanager
def _served(bench: Bench, session: Session, streams: int) -> Iterator[RuntimeClient]:
    """Serve the session's model over gRPC, warmed up."""
    batch = Batch(session.engine, streams, 4 * streams, bench.config.runtime.prefill_tokens)
    batch.run(lambda: warm_up(session.engine))
    servicer = RuntimeServicer(ServedModel(session.engine, bench.tokenizer, "", ""), batch)
    server = start_server(servicer.register, [SERVICE_NAME], [parse_address("127.0.0.1:0")], workers=2 * streams + 2)
    client = RuntimeClient(str(server.addresses[0]))
    try:
        yield client
    finally:
        client.close()
        server.stop(0)
        batch.close()


def _run(
    client: RuntimeClient, asked: Sequence[Sequence[int]], answer_tokens: int, streams: int, skip_cache: bool
) -> tuple[list[Streamed], float]:
    """Answer all requests with ``streams`` callers; return the answers in order, and the seconds for all."""
    start_s = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        jobs = [pool.submit(_stream, client, ids, answer_tokens, skip_cache) for ids in asked]
        answers = [job.result() for job in jobs]
    return answers, time.perf_counter() - start_s


def _stream(client: RuntimeClient, ids: Sequence[int], answer_tokens: int, skip_cache: bool) -> Streamed:
    tokens: list[int] = []
    at_s = [time.perf_counter()]
    reuse_share = 0.0
    for event in client.generate(ids, max_new_tokens=answer_tokens, sampling=GREEDY, skip_cache=skip_cache):
        if isinstance(event, Finish):
            reuse_share = event.report.reused_tokens / event.report.prompt_tokens
        else:
            tokens.append(event.id)
            at_s.append(time.perf_counter())
    waits = [b - a for a, b in pairwise(at_s)]
    return Streamed(tuple(tokens), waits[0], tuple(waits[1:]), reuse_share)


def _row(
    prompts: str, streams: int, answers: Sequence[Streamed], alone: Sequence[Streamed], seconds: float
) -> dict[str, Any]:
    tokens = sum(len(each.token_ids) for each in answers)
    gaps = [gap for each in answers for gap in each.gaps_s] or [0.0]
    pairs = zip(answers, alone, strict=True)
    return {
        "prompts": prompts,
        "streams": streams,
        "requests": len(answers),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "reuse_share": mean(each.reuse_share for each in answers),
        "ttft_s": median(each.first_s for each in answers),
        "ttft_worst_s": max(each.first_s for each in answers),
        "gap_s": median(gaps),
        "gap_worst_s": max(gaps),
        "same_answers": mean(float(one.token_ids == other.token_ids) for one, other in pairs),
    }


def _ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return tokens per second of the most streams over those of one, by kind of prompts."""
    ratios = {}
    for prompts in (_CACHED, _COMPUTED):
        by_streams = {row["streams"]: row["tokens_per_s"] for row in rows if row["prompts"] == prompts}
        if 1 in by_streams and len(by_streams) > 1:
            ratios[prompts] = by_streams[max(by_streams)] / by_streams[1]
    return ratios


def _draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw tokens per second, and how long the callers wait, by the number of streams."""
    with figure(path, "Streams at once on one model", columns=2) as axes:
        for i, prompts in enumerate((_CACHED, _COMPUTED)):
            rows = [row for row in result["rows"] if row["prompts"] == prompts]
            streams = [row["streams"] for row in rows]
            style: dict[str, Any] = {"color": COLOURS[i], "marker": MARKERS[i]}
            axes[0].plot(streams, [row["tokens_per_s"] for row in rows], label=f"{prompts} prompts", **style)
            axes[1].plot(streams, [row["gap_s"] for row in rows], label=f"{prompts}: median", **style)
            worst = [row["gap_worst_s"] for row in rows]
            axes[1].plot(streams, worst, label=f"{prompts}: worst", linestyle=":", **style)
        axes[0].set_title("Tokens per second, all streams together")
        axes[1].set_title("Seconds between two tokens of a stream")
        for axis in axes:
            axis.set_xlabel("streams")
            axis.set_ylim(bottom=0)
            axis.legend()


def _table(result: Result) -> str:
    ratios = ", ".join(f"{ratio:.2f} over {prompts} prompts" for prompts, ratio in result["ratios"].items())
    note = "\ntime was up: fewer rows than asked for" if result["stopped_early"] else ""
    return (
        f"{table(result['rows'], _COLUMNS)}\ntokens per second, most streams over one: {ratios or 'not measured'}{note}"
    )


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("concurrency", __doc__ or "")
    made.add_argument(
        "--streams", type=int, nargs="+", metavar="N", help="callers at once (default: 1 2 4 8; 1 8 with --quick)"
    )
    return made


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; ``bench`` stands in for the model that the arguments name."""
    return run(Eval("concurrency", _parser(), measure, _table, _draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
