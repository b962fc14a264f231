"""Time to first token by tier, prompt length, new share, transport and dtype, beside every limit; hand-over speed."""

from __future__ import annotations

import argparse
import copy
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from evals import _arguments
from evals._bench import Bench, Deadline
from evals._beside import beside
from evals._clocks import Plain, twin
from evals._handover import measure_handover
from evals._latency_cells import TIERS, make_group
from evals._latency_checks import against_in_process, checks
from evals._latency_measure import GroupRun, Rounds
from evals._latency_plot import draw
from evals._latency_quality import add_quality
from evals._latency_slope import measure_slope
from evals._main import Eval, Result, run
from evals._served import TRANSPORTS, Served, cache_server, served
from evals._table import table
from kvboost.errors import InputError
from kvboost.runtime.kv.codec import TORCH_DTYPES
from services.progress import bar

_SKIPPABLE = ("handover", "slope", "quality")
_COLUMNS = (
    "tier", "tokens", "new_share", "transport", "dtype", "ttft_s", "baseline_ttft_s", "resident_ttft_s",
    "hf_prefix_ttft_s", "ratio_to_resident", "speedup", "computed_tokens", "kl_mean", "top1_agreement",
)  # fmt: skip
_HANDOVER_COLUMNS = ("path", "bytes_per_s", "memcpy_bytes_per_s", "ratio_to_memcpy", "repetitions")
_LONGEST_MARGIN = 64
_SLOPE_STEPS = 4
_QUICK_GROUP_S = 35.0  # a quick run starts nothing large later than this before its end


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    tokens: tuple[int, ...]
    shares: tuple[float, ...]
    tiers: tuple[str, ...]
    transports: tuple[str, ...]
    dtypes: tuple[str, ...]
    repetitions: int

    @classmethod
    def of(cls, args: argparse.Namespace, bench: Bench) -> Plan:
        """Return what the arguments ask for, in the model's bounds."""
        limit = getattr(bench.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        asked = args.tokens or ([1024] if args.quick else [1024, 4096, 8192])
        return cls(
            tuple(min(n, limit - _LONGEST_MARGIN) if limit else n for n in asked),
            tuple(args.shares or ([0.02, 0.15] if args.quick else [0.005, 0.02, 0.05, 0.15])),
            tuple(args.tiers or TIERS),
            tuple(args.transports or TRANSPORTS),
            tuple(args.dtypes or ("float32", "bfloat16")),
            args.repetitions or (3 if args.quick else 5),
        )


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Measure the cells group by group, each interleaved; then the slope, and the hand-over."""
    plan = Plan.of(args, bench)
    if any(not 0.0 < share < 1.0 for share in plan.shares):
        raise InputError("--shares must lie between 0 and 1: they are shares of the prompt's tokens")
    deadline = Deadline(args.quick)
    cells: list[dict[str, Any]] = []
    slopes: list[dict[str, Any]] = []
    handover: list[dict[str, Any]] = []
    skipped = set(args.skip or ())
    with cache_server(args.embedder or bench.config.embedder.model) as addresses:
        if "handover" not in skipped:
            repetitions = 2 if args.quick else 7
            handover = measure_handover(args.handover_mib, repetitions, args.seed, addresses)
        for dtype in plan.dtypes:
            if deadline.passed(_QUICK_GROUP_S if cells else 0.0):
                break
            with ExitStack() as stack:
                model = as_dtype(bench.model, dtype)
                over = stack.enter_context(served(bench, model, plan.transports, addresses))
                plain = Plain(twin(model))
                stack.enter_context(beside(args.beside))
                cells += _groups(bench, plan, args, dtype, over, plain, deadline, skipped)
                if "slope" not in skipped and not deadline.passed(_QUICK_GROUP_S):
                    slopes.append({"dtype": dtype, **_slope(bench, plan, args, over, plain)})
    return {
        "cells": cells,
        "handover": handover,
        "slopes": slopes,
        "checks": [*checks(cells, handover, slopes), *(against_in_process(cells) if args.beside else ())],
        "beside": args.beside,
        "stopped_early": deadline.stopped,
    }


def _groups(
    bench: Bench,
    plan: Plan,
    args: argparse.Namespace,
    dtype: str,
    over: Served,
    plain: Plain,
    deadline: Deadline,
    skipped: set[str],
) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = []
    for tokens in plan.tokens:
        if cells and deadline.passed(_QUICK_GROUP_S):
            break
        group = make_group(bench.tokenizer, tokens, plan.shares, plan.tiers, bench.policy, args.seed)
        rng = random.Random(f"{args.seed} {tokens} {dtype} order")
        ran = GroupRun(group, over, plain, plan.transports, rng)
        ran.prepare()
        rounds = Rounds(plan.repetitions, tokens)
        title = f"rounds of {tokens} tokens in {dtype}"
        for _ in bar(ran.run(rounds, deadline), title, total=plan.repetitions, unit="round"):
            pass
        made = list(ran.cells(dtype, bench.tokenizer))
        if "quality" not in skipped:
            add_quality(made, group, over, _arguments.size(args, "answer_tokens", 16, 32))
        cells += made
    return cells


def _slope(bench: Bench, plan: Plan, args: argparse.Namespace, over: Served, plain: Plain) -> dict[str, Any]:
    longest = max(plan.tokens) - 2 * _LONGEST_MARGIN
    sizes = sorted({max(16, longest * step // _SLOPE_STEPS) for step in range(1, _SLOPE_STEPS + 1)})
    rng = random.Random(f"{args.seed} slope")
    return measure_slope(over, plain, bench.tokenizer, sizes, bench.policy, plan.repetitions, rng)


def as_dtype(model: PreTrainedModel, dtype: str) -> PreTrainedModel:
    """Return a module with these weights in ``dtype``; over the same memory if that is what they are in."""
    wanted = TORCH_DTYPES[dtype]
    return twin(model) if model.dtype == wanted else copy.deepcopy(model).to(wanted)


def _table(result: Result) -> str:
    parts: list[str] = []
    sections: Sequence[tuple[str, Sequence[str]]] = (("cells", _COLUMNS), ("handover", _HANDOVER_COLUMNS))
    for name, columns in sections:
        if result[name]:
            parts.append(table(result[name], columns))
    for slope in result["slopes"]:
        per = ", ".join(f"{name} {value:.4f}" for name, value in slope["seconds_per_1000_tokens"].items())
        over = slope["ratio_to_memcpy_and_rotation"]
        said = (
            "too short to tell" if over is None else f"{over:.2f}, {slope['ratio_without_attention']:.2f} less resident"
        )
        parts.append(f"{slope['dtype']}, seconds per 1,000 reused tokens: {per}; over memcpy + rotation: {said}")
    if result["checks"]:
        parts.append(table(result["checks"], ("what", "value", "asked", "met")))
    if result["stopped_early"]:
        parts.append("time was up: fewer cells or rounds than asked for")
    return "\n\n".join(parts)


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("latency", __doc__ or "")
    cells = made.add_argument_group("which cells (default: all, fewer with --quick)")
    cells.add_argument("--tokens", nargs="+", type=int, metavar="N", help="prompt lengths, cut at the model's context")
    cells.add_argument("--shares", nargs="+", type=float, metavar="X", help="shares of new or recomputed tokens")
    cells.add_argument("--tiers", nargs="+", choices=TIERS, help="kinds of prompts")
    cells.add_argument("--transports", nargs="+", choices=TRANSPORTS, help="ways to the cache")
    cells.add_argument("--dtypes", nargs="+", choices=sorted(TORCH_DTYPES), help="dtypes of weights and K/V")
    cells.add_argument("--repetitions", type=int, metavar="N", help="rounds; full prefills of long prompts have fewer")
    cells.add_argument(
        "--beside",
        type=int,
        default=0,
        metavar="N",
        help="busy processes meanwhile; the ways to a cache service are then judged against the one in process",
    )
    cells.add_argument("--skip", nargs="+", choices=_SKIPPABLE, help="parts to leave out")
    cells.add_argument("--handover-mib", type=int, default=256, metavar="MIB", help="size of the hand-over (256)")
    return made


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; ``bench`` stands in for the model that the arguments name."""
    return run(Eval("latency", _parser(), measure, _table, draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
