"""Match time, memory, changes and files of the vector index, and the store's costs, by number of chunks.

``rows``
    One for each size and number of queries (a prompt of 64 chunks that no hash found, and of 1, 4 and 512).
    ``search_s`` is the median search of a prompt, half of whose queries are edited chunks and half unknown;
    ``search_cpu_s`` the processor time of it, which other work on the machine upsets less. ``build_s`` is the time
    to fill the index; ``add_s`` and ``remove_s`` are of one chunk. ``bytes`` is what the index counts,
    ``resident_bytes`` what the process grew by.
``growth``
    Processor time of a search at the largest size over that at the smallest, and the exponent of its growth: exact
    search grows in proportion to the chunks, exponent 1, or more where the smallest size still fits the processor's
    cache. Above 1.5 the eval fails, and so it does where a saved index finds something else than before.
``store``
    ``match_...`` per prompt of 64 chunks, everything else per chunk.

Needs no model. The vectors are drawn: see ``evals/_scale_vectors.py``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from evals._arguments import bare_parser
from evals._main import PlainEval, Result, run_plain
from evals._scale_index import QUERIES, IndexMeasurement
from evals._scale_plot import draw
from evals._scale_store import measure_store
from evals._scale_vectors import DIM, ScaleVectors
from evals._table import table
from kvboost.policy import ReusePolicy
from services.progress import bar

MAX_EXPONENT = 1.5
_FULL, _QUICK = (10_000, 50_000, 100_000, 200_000, 300_000), (10_000, 50_000)
_STORE_FULL, _STORE_QUICK = (1_000, 10_000, 100_000), (1_000, 10_000)
_COLUMNS = (
    "chunks", "queries", "search_s", "search_cpu_s", "bytes", "resident_bytes", "build_s", "add_s", "remove_s",
    "save_s", "load_s",
)  # fmt: skip
_STORE_COLUMNS = ("chunks", "put_s", "put_evicting_s", "match_prefix_s", "match_reordered_s", "get_s", "evict_s")


def measure(args: argparse.Namespace) -> Result:
    """Measure the index at each size, then the store."""
    sizes = sorted(set(args.chunks or (_QUICK if args.quick else _FULL)))
    store_sizes = sorted(set(args.store_chunks or (_STORE_QUICK if args.quick else _STORE_FULL)))
    vectors = ScaleVectors(args.seed)
    rows: list[dict[str, Any]] = []
    for size in bar(sizes, "filling and searching", total=len(sizes), unit="size"):
        rows += IndexMeasurement(vectors, size, args.threshold).rows()
    growth = [_growth(rows, queries) for queries in QUERIES]
    return {
        "rows": rows,
        "growth": growth,
        "store": list(bar(measure_store(store_sizes, args.seed), "storing", total=len(store_sizes), unit="size")),
        "threshold": args.threshold,
        "dim": DIM,
        "vectors": "drawn: Gaussian mixture with the spectrum of all-MiniLM-L6-v2",
        "failures": list(_failures(rows, growth)),
    }


def _growth(rows: Sequence[dict[str, Any]], queries: int) -> dict[str, Any]:
    own = [row for row in rows if row["queries"] == queries]
    chunks, time = own[-1]["chunks"] / own[0]["chunks"], own[-1]["search_cpu_s"] / own[0]["search_cpu_s"]
    exponent = math.log(time) / math.log(chunks) if chunks > 1 else None
    return {"queries": queries, "chunks_ratio": chunks, "time_ratio": time, "exponent": exponent}


def _failures(rows: Sequence[dict[str, Any]], growth: Sequence[dict[str, Any]]) -> Iterator[str]:
    for each in growth:
        if each["exponent"] is not None and each["exponent"] > MAX_EXPONENT:
            yield f"search of {each['queries']} queries grew {each['time_ratio']:.1f}x over {each['chunks_ratio']:.0f}x"
    for row in rows:
        if not row["same_when_loaded"]:
            yield f"the index of {row['chunks']} chunks finds something else after loading"


def _table(result: Result) -> str:
    parts = [table(result["rows"], _COLUMNS)]
    parts.append(table(result["growth"], ("queries", "chunks_ratio", "time_ratio", "exponent")))
    parts.append(table(result["store"], _STORE_COLUMNS))
    return "\n\n".join(parts)


def _parser() -> argparse.ArgumentParser:
    made = bare_parser("scale", (__doc__ or "").partition("\n")[0])
    size = made.add_argument_group("size")
    size.add_argument("--chunks", type=int, nargs="+", metavar="N", help="sizes of the index")
    size.add_argument("--store-chunks", type=int, nargs="+", metavar="N", help="sizes of the store")
    threshold = ReusePolicy().threshold
    size.add_argument(
        "--threshold", type=float, default=threshold, help=f"of a hit (default: {threshold}, the policy's)"
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    return run_plain(PlainEval("scale", _parser(), measure, _table, draw), argv)


if __name__ == "__main__":
    sys.exit(main())
