"""Gaps between the tokens of running answers while new requests meet a cache whose look-ups take long."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from evals import _arguments
from evals._bench import Bench
from evals._documents import own_documents
from evals._frozen import FrozenCache
from evals._main import Eval, Result, run
from evals._plots import COLOURS, figure
from evals._table import table
from kvboost.api import boost, engine_of, unboost
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.runtime.batching import Batch, BatchRequest, Ended
from kvboost.sampling import GREEDY
from kvboost.types import MatchQuery, MatchResult

_CACHE_BYTES = 1 << 30
_BOUND = 3.0
_COLUMNS = ("match_s", "answers", "newcomers", "tokens", "median_gap_s", "longest_gap_s")
_ANSWERING_TIMEOUT_S = 600.0


class _Slow(FrozenCache):
    """A cache that keeps nothing, and whose look-ups take ``match_s`` longer."""

    match_s = 0.0

    def match(self, query: MatchQuery) -> MatchResult:
        """Look up, late."""
        time.sleep(self.match_s)
        found: MatchResult = super().match(query)
        return found


class _Reader:
    """Notes when each token came."""

    def __init__(self) -> None:
        self.came_s: list[float] = []
        self.begun, self.over = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def gone(self) -> bool:
        return False

    def on_token(self, token_id: int) -> bool:
        self.came_s.append(time.perf_counter())
        self.begun.set()
        return False

    def on_end(self, ended: Ended) -> None:
        self.over.set()

    def on_error(self, error: BaseException) -> None:
        self.error = error
        self.begun.set()
        self.over.set()

    def wait(self, event: threading.Event) -> None:
        if not event.wait(_ANSWERING_TIMEOUT_S):
            raise TimeoutError(f"no answer within {_ANSWERING_TIMEOUT_S:.0f} s")
        if self.error is not None:
            raise self.error


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Answer on and on; send newcomers meanwhile, once with a quick cache and once with a slow one."""
    config = bench.model.generation_config
    ends, config.eos_token_id = config.eos_token_id, None  # every answer runs to its length
    cache = _Slow(LocalCache(_CACHE_BYTES, None))
    boost(bench.model, bench.tokenizer, cache, ReusePolicy(audit_rate=0.0), config=bench.config)
    try:
        with closing(Batch(engine_of(bench.model), max_batch=args.answers + args.newcomers)) as batch:
            rows = []
            for match_s in (0.0, args.match_s):
                cache.match_s = match_s
                rows.append({"match_s": match_s, **_gaps(bench, batch, args)})
    finally:
        unboost(bench.model)
        config.eos_token_id = ends
    ratio = rows[1]["longest_gap_s"] / rows[0]["longest_gap_s"]
    asked = {"what": "longest gap, slow over quick", "value": ratio, "asked": f"< {_BOUND:g}", "met": ratio < _BOUND}
    return {"rows": rows, "longest_gap_ratio": ratio, "checks": [asked]}


def _gaps(bench: Bench, batch: Batch, args: argparse.Namespace) -> dict[str, Any]:
    documents = own_documents(bench.tokenizer, args.document_tokens or 200)[: args.newcomers]
    short = tuple(bench.tokenizer("Tell a long story.")["input_ids"])
    running = [_Reader() for _ in range(args.answers)]
    for reader in running:
        batch.submit(BatchRequest(short, args.tokens, GREEDY, time.perf_counter(), skip_cache=True), reader)
    for reader in running:
        reader.wait(reader.begun)
    new = [_Reader() for _ in range(args.newcomers)]
    began_s = time.perf_counter()
    for reader, document in zip(new, documents, strict=True):
        ids = tuple(bench.tokenizer(document.text)["input_ids"])
        batch.submit(BatchRequest(ids, 2, GREEDY, time.perf_counter()), reader)
    for reader in (*running, *new):
        reader.wait(reader.over)
    gaps = [b - a for reader in running for a, b in pairwise(t for t in reader.came_s if t >= began_s)]
    return {
        "answers": args.answers,
        "newcomers": args.newcomers,
        "tokens": args.tokens,
        "median_gap_s": median(gaps),
        "longest_gap_s": max(gaps),
    }


def _table(result: Result) -> str:
    return f"{table(result['rows'], _COLUMNS)}\n\n{table(result['checks'], ('what', 'value', 'asked', 'met'))}"


def _draw(result: Result, path: Path) -> None:
    with figure(path, "Running answers beside a slow look-up") as axes:
        axis = axes[0]
        rows: Sequence[dict[str, Any]] = result["rows"]
        names = [f"look-up takes {row['match_s']:g} s longer" for row in rows]
        axis.bar(names, [1000 * row["longest_gap_s"] for row in rows], color=COLOURS[: len(rows)])
        axis.set_ylabel("longest gap between two tokens, ms")


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("stalls", __doc__ or "")
    load = made.add_argument_group("load")
    load.add_argument("--match-s", type=float, default=1.5, metavar="S", help="seconds that a look-up takes (1.5)")
    load.add_argument("--answers", type=int, default=8, metavar="N", help="answers that run meanwhile (8)")
    load.add_argument("--newcomers", type=int, default=3, metavar="N", help="requests that look up (3)")
    load.add_argument("--tokens", type=int, default=120, metavar="N", help="tokens of a running answer (120)")
    return made


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; ``bench`` stands in for the model that the arguments name."""
    return run(Eval("stalls", _parser(), measure, _table, _draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
