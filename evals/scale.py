"""Match time, memory, recall, changes and files of the index, and the store's costs, by number of chunks.

``rows``
    One for each size, kind of index and number of queries (a prompt of 64 chunks that no hash found, and of 4).
    ``default`` marks the kind that is chosen at this size. ``search_s`` is the median search of a prompt, half of whose
    queries are edited chunks and half unknown. ``recall_at_1`` is the share of exact search's hits at the threshold
    that this index finds, over edited chunks at cosines from .85 to 1. ``build_s`` is the time to fill an exact index,
    or to train, tune and fill an approximate one beside the live one, which is searched and changed meanwhile
    (``building_...``). ``add_s`` and ``remove_s`` are of one chunk. ``bytes`` is what the index counts,
    ``resident_bytes`` what the process grew by.
``growth``
    Search time of the default index at the largest size over that at the smallest, and the exponent of its growth:
    1 would be in proportion to the chunks. An exponent of 1 or more fails, and so does a recall below .99.
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
from kvboost.index.vectors_scaling import EXACT_UP_TO
from kvboost.policy import ReusePolicy
from services.progress import bar

MIN_RECALL = 0.99
_FULL, _QUICK = (10_000, 100_000, 1_000_000), (10_000, 60_000, 240_000)
_STORE_FULL, _STORE_QUICK = (1_000, 10_000, 100_000), (1_000, 10_000)
_COLUMNS = (
    "chunks", "index", "default", "queries", "search_s", "recall_at_1", "bytes", "resident_bytes", "build_s", "add_s",
    "remove_s", "save_s", "load_s",
)  # fmt: skip
_STORE_COLUMNS = ("chunks", "put_s", "put_evicting_s", "match_prefix_s", "match_reordered_s", "get_s", "evict_s")


def measure(args: argparse.Namespace) -> Result:
    """Measure the index at each size, then the store."""
    sizes = sorted(set(args.chunks or (_QUICK if args.quick else _FULL)))
    store_sizes = sorted(set(args.store_chunks or (_STORE_QUICK if args.quick else _STORE_FULL)))
    vectors = ScaleVectors(args.seed)
    rows: list[dict[str, Any]] = []
    for size in bar(sizes, "filling and searching", total=len(sizes), unit="size"):
        batches = 2 if args.quick else 6
        rows += IndexMeasurement(vectors, size, args.threshold, args.exact_up_to, batches).rows()
    growth = [_growth(rows, queries) for queries in QUERIES]
    return {
        "rows": rows,
        "growth": growth,
        "store": list(bar(measure_store(store_sizes, args.seed), "storing", total=len(store_sizes), unit="size")),
        "threshold": args.threshold,
        "exact_up_to": args.exact_up_to,
        "dim": DIM,
        "vectors": "drawn: Gaussian mixture with the spectrum of all-MiniLM-L6-v2",
        "failures": list(_failures(rows, growth)),
    }


def _growth(rows: Sequence[dict[str, Any]], queries: int) -> dict[str, Any]:
    own = [row for row in rows if row["default"] and row["queries"] == queries]
    chunks, time = own[-1]["chunks"] / own[0]["chunks"], own[-1]["search_s"] / own[0]["search_s"]
    exponent = math.log(time) / math.log(chunks) if chunks > 1 else None
    return {"queries": queries, "chunks_ratio": chunks, "time_ratio": time, "exponent": exponent}


def _failures(rows: Sequence[dict[str, Any]], growth: Sequence[dict[str, Any]]) -> Iterator[str]:
    for each in growth:
        if each["exponent"] is not None and each["exponent"] >= 1:
            yield f"search of {each['queries']} queries grew {each['time_ratio']:.1f}x over {each['chunks_ratio']:.0f}x"
    for row in rows:
        if row["recall_at_1"] < MIN_RECALL:
            yield f"recall@1 of {row['index']} at {row['chunks']} chunks is {row['recall_at_1']:.4f}"
        if not row.get("same_when_loaded", True):
            yield f"the {row['index']} index of {row['chunks']} chunks finds something else after loading"


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
    size.add_argument(
        "--exact-up-to", type=int, default=EXACT_UP_TO, metavar="N", help="where search turns approximate"
    )
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
