"""``kvboost plan``: which donors a cache would lend to a prompt, and whether it is worth it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from .config import load_from_arguments
from .explain import add_prompt_arguments, engine_and_prompt, hint, where

if TYPE_CHECKING:
    from kvboost.runtime.plan.plan import ReuseSpan
    from kvboost.runtime.tools.dry_run import DryRun

HELP = "print the plan for a prompt, donor by donor, and its estimated cost, without running the model on it"
EXAMPLE = "kvboost plan new.txt --cache unix:/run/kvboost/cache.sock --json"
EXTRA = "runtime"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_prompt_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Plan the prompt, and print what was found."""
    from kvboost.runtime.tools.dry_run import dry_run

    config = load_from_arguments(args, cache__address=args.cache, model__name_or_path=args.model).config
    with engine_and_prompt(config, args) as (engine, ids):
        found = dry_run(engine, ids)
    if args.json:
        print(json.dumps(_figures(found), indent=2))
    else:
        print("\n".join([*_lines(found), f"looked up in {where(config)}. {hint(config, args)}".rstrip()]))
    return 0


def _figures(found: DryRun) -> dict[str, object]:
    plan = found.plan
    return {
        "prompt_tokens": plan.num_tokens,
        "reused_tokens": plan.reused_tokens,
        "recomputed_tokens_at_most": found.repaired_tokens,
        "spans": _spans(found),
        "full_s": found.full_s,
        "reuse_s": found.reuse_s,
        "worth_it": _worth_it(found),
        "verdict": found.verdict,
        "declined": list(plan.declined),
        "stages_s": found.stages_s,
    }


def _worth_it(found: DryRun) -> bool:
    """Return whether anything would be reused, as it stands."""
    return found.plan.reused_tokens > 0 and found.verdict is None


def _spans(found: DryRun) -> list[dict[str, object]]:
    """Return the prompt in order, reused and computed."""
    reused = [_reused(piece) for piece in found.plan.reuse]
    computed: list[dict[str, object]] = [
        {"start": span.start, "end": span.end, "tier": "computed"} for span in found.plan.compute
    ]
    return sorted([*reused, *computed], key=lambda span: int(str(span["start"])))


def _reused(piece: ReuseSpan) -> dict[str, object]:
    donor = piece.donor
    return {
        "start": piece.target.start,
        "end": piece.target.end,
        "tier": str(piece.tier),
        "donor": donor.chunk_id,
        "donor_start": donor.start + piece.offset,
        "exact_donor": donor.exact,
        "shift": piece.shift,
        "similarity": piece.similarity,
    }


def _lines(found: DryRun) -> list[str]:
    rows = [("tokens", "tier", "shift", "donor")]
    for span in _spans(found):
        shift = f"{span['shift']:+}" if "shift" in span else ""
        rows.append((f"{span['start']}-{span['end']}", str(span["tier"]), shift, str(span.get("donor", ""))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    plan = found.plan
    lines = [
        *table,
        "",
        f"{plan.reused_tokens:,} of {plan.num_tokens:,} tokens have a donor, of which repair computes "
        f"{found.repaired_tokens:,} anew at most",
    ]
    if found.full_s is not None and found.reuse_s is not None:
        lines.append(f"estimated: {found.reuse_s:.3f} s with reuse, {found.full_s:.3f} s without")
    if found.verdict:
        lines.append(found.verdict)
    return [*lines, *(f"not used: {reason}" for reason in plan.declined)]
