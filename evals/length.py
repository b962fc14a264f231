"""Processor time by stage, and memory beside the K/V, from short prompts to 128K tokens.

``rows``
    One for each model, length and kind of request: ``cold``; ``prefix``, the same start and another end of 8 %;
    ``shifted``, documents in another order; ``edited``, one word of one document. ``stages_cpu_s`` is processor time
    of the thread that a stage runs on; ``harvest`` cuts out what is stored and ``put`` stores it, both in the
    background; ``forward`` is what is left: the model's passes, and ``generate()`` around them. ``extra_bytes`` is what
    the process grew by at most while it served the request, less the K/V (of the slab, and newly stored), looked at
    every 2 ms.
``growth``
    By how much a stage's time per token grows from one length to the next, for each doubling. Asked: 1.3 at most, that
    is 2.6 times the time for twice the prompt, where the stage takes more than 50 ms. Attention reads all keys for
    every token that is computed, so ``forward`` grows faster by its nature; it is shown and not asked about.

The tiny model is random: 2 layers, 16 numbers wide, so that what is not the model is seen. Memory of a cold prompt is
transformers' own, which computes it in one pass. Nothing is embedded. Threads of torch are to be one (``--threads 1``),
or the time of its other threads counts as ``forward``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from transformers import PreTrainedModel

from evals import _arguments
from evals._bench import Bench
from evals._latency_cells import make_group
from evals._length_measure import measure_request, tiny_model
from evals._length_plot import draw
from evals._main import Eval, Result, run
from evals._table import table
from services.progress import bar

KINDS = ("cold", "prefix", "shifted", "edited")
MOST_GROWTH = 1.3
MOST_EXTRA_BYTES = 256 << 20
_LEAST_S = 0.05
_SHARE = 0.08
_ROOM_TOKENS = 1024
_TEXT_TOKENS = 40_000  # of a prompt, twice which and a little the texts hold
_FULL, _QUICK = (8192, 32768, 131072), (2048, 8192)
_STAGES = ("segment", "match", "plan", "fetch", "repair", "harvest", "put")
_COLUMNS = (
    "model", "kind", "prompt_tokens", "computed_tokens", *_STAGES, "forward", "extra_mib", "kv_mib",
)  # fmt: skip


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Measure the tiny model at all lengths, then the configured one."""
    lengths = sorted(set(args.tokens or (_QUICK if args.quick else _FULL)))
    tiny = tiny_model(bench.tokenizer, lengths[-1] + _ROOM_TOKENS, args.seed)
    runs = [("tiny", tiny, tokens) for tokens in lengths]
    runs += [("configured", bench.model, tokens) for tokens in args.model_tokens or ()]
    rows: list[dict[str, Any]] = []
    for name, model, tokens in bar(runs, "lengths", total=len(runs), unit="length"):
        rows += _rows(bench, name, model, tokens, args.seed)
    growth = list(_growth(rows))
    return {"rows": rows, "growth": growth, "failures": list(_failures(rows, growth))}


def _rows(bench: Bench, name: str, model: PreTrainedModel, tokens: int, seed: int) -> Iterator[dict[str, Any]]:
    policy = replace(bench.policy, recompute_ratio=_SHARE)
    tiers, rounds = ("prefix", "shifted", "edited"), 1 + tokens // _TEXT_TOKENS
    group = make_group(bench.tokenizer, tokens, (_SHARE,), tiers, policy, seed, rounds)
    requests = [("cold", group.base, policy), *((case.tier, case.prompt, case.policy) for case in group.cases)]
    with replace(bench, embedder=None).session(model=model) as session:
        session.store(group.donors[1][:512])  # what is made once at first use is no cost of a long prompt
        for kind, prompt, its_policy in requests:
            if kind == "shifted":
                session.store(group.donors[1])
            yield {"model": name, "kind": kind, "tokens": tokens, **measure_request(session, prompt, its_policy)}


def _growth(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(row["model"] for row in rows):
        for kind in KINDS:
            own = [row for row in rows if (row["model"], row["kind"]) == (name, kind)]
            for short, long in pairwise(own):
                yield from _steps(name, kind, short, long)


def _steps(name: str, kind: str, short: dict[str, Any], long: dict[str, Any]) -> Iterator[dict[str, Any]]:
    doublings = math.log2(long["prompt_tokens"] / short["prompt_tokens"])
    for stage in (*_STAGES, "forward"):
        before, after = (row["stages_cpu_s"].get(stage, 0.0) for row in (short, long))
        if before > 0.0 and doublings > 0.0:
            ratio = (after / before) ** (1.0 / doublings) / 2.0
            span = {"from_tokens": short["prompt_tokens"], "to_tokens": long["prompt_tokens"]}
            yield {"model": name, "kind": kind, "stage": stage, **span, "seconds": after, "per_doubling": ratio}


def _failures(rows: Sequence[dict[str, Any]], growth: Sequence[dict[str, Any]]) -> Iterator[str]:
    for each in growth:
        if each["stage"] != "forward" and each["seconds"] > _LEAST_S and each["per_doubling"] > MOST_GROWTH:
            yield (
                f"{each['stage']} of {each['kind']} prompts: time per token grew {each['per_doubling']:.2f}x for each "
                f"doubling from {each['from_tokens']} to {each['to_tokens']} tokens ({each['model']} model)"
            )
    for row in rows:
        if row["kind"] != "cold" and (row["extra_bytes"] or 0) > MOST_EXTRA_BYTES:
            yield (
                f"a {row['kind']} prompt of {row['prompt_tokens']} tokens took {row['extra_bytes'] >> 20} MiB beside "
                f"its K/V ({row['model']} model)"
            )


def _table(result: Result) -> str:
    shown = [
        {
            **row,
            **row["stages_cpu_s"],
            "kv_mib": row["kv_bytes"] / (1 << 20),
            "extra_mib": None if row["extra_bytes"] is None else row["extra_bytes"] / (1 << 20),
        }
        for row in result["rows"]
    ]
    worst = sorted(result["growth"], key=lambda each: -each["per_doubling"])
    parts = [table(shown, _COLUMNS)]
    if worst:
        columns = ("model", "kind", "stage", "from_tokens", "to_tokens", "seconds", "per_doubling")
        parts.append("fastest growth of time per token, for each doubling\n" + table(worst[:12], columns))
    return "\n\n".join(parts)


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("length", (__doc__ or "").partition("\n")[0])
    size = made.add_argument_group("length")
    size.add_argument("--tokens", nargs="+", type=int, metavar="N", help="prompt lengths of the tiny model")
    size.add_argument(
        "--model-tokens", nargs="+", type=int, metavar="N", help="of the configured model (default: none)"
    )
    return made


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; ``bench`` stands in for the model that the arguments name."""
    return run(Eval("length", _parser(), measure, _table, draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
