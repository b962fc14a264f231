"""Reuse and time to first token against loss, by similarity threshold, chunk size and tiers; recommends a setting."""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from evals import _arguments
from evals._arguments import size
from evals._bench import Bench, Deadline, Session
from evals._main import Eval, Result, run
from evals._near_duplicates import NearDuplicate, near_duplicates
from evals._pareto import front, recommend
from evals._rows import Sample, row
from evals._table import table
from evals._tasks import Sizes
from evals._threshold_config import to_setting, write_config
from evals._threshold_plot import draw
from kvboost.config import SegmentConfig
from kvboost.policy import ReusePolicy
from kvboost.runtime.tools.score import FullPrefill
from kvboost.types import Tier
from services.progress import bar

_TIERS = (
    (Tier.PREFIX,),
    (Tier.PREFIX, Tier.EXACT),
    (Tier.PREFIX, Tier.EXACT, Tier.SIMILAR),
    (Tier.PREFIX, Tier.EXACT, Tier.SIMILAR, Tier.SUBSTITUTE),
)
_THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0)
_QUICK_THRESHOLDS = (0.7, 0.85, 0.95, 1.0)
_CHUNKS = ((8, 32), (16, 64), (32, 128))
_QUICK_CHUNKS = ((16, 64), (32, 128))
_COLUMNS = (
    "min_tokens", "max_tokens", "tiers", "threshold", "reuse_share", "similar_share", "kl_mean", "top1_agreement",
    "ttft_ratio", "pareto", "n",
)  # fmt: skip
_MAX_KL = (
    "loss that the recommended setting may have: mean KL to full prefill in nats, over answer tokens (default: 0.02)"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell of the sweep; the threshold means nothing without the similar tier."""

    segment: SegmentConfig
    policy: ReusePolicy


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Serve every prompt under every setting."""
    sizes = Sizes(size(args, "items", 3, 12), size(args, "documents", 3, 4), size(args, "document_tokens", 300, 300))
    answer_tokens = size(args, "answer_tokens", 32, 48)
    items, source = near_duplicates(bench.tokenizer, sizes, args)
    deadline = Deadline(args.quick)
    settings = _settings(bench, args)
    samples: dict[Setting, list[Sample]] = defaultdict(list)
    for number, item in enumerate(bar(items, "prompts", total=len(items), unit="prompt")):
        if deadline.passed():
            break
        rng = random.Random(f"{args.seed} {number}")
        for setting, sample in _measure_item(bench, item, settings, answer_tokens, rng):
            samples[setting].append(sample)
    cells = _cells(samples)
    best = _best(cells, bench.policy, args.max_kl)
    written = _write(bench, best, args)
    return {
        "cells": cells,
        "max_kl": args.max_kl,
        "recommended": None if best is None else to_setting(best),
        "config_file": written,
        "base_policy": asdict(bench.config.policy),
        "sizes": {**asdict(sizes), "answer_tokens": answer_tokens},
        "sources": {"near-duplicates": source},
        "stopped_early": deadline.stopped,
        "failures": _rises(samples),
    }


def _settings(bench: Bench, args: argparse.Namespace) -> list[Setting]:
    thresholds = args.thresholds or (_QUICK_THRESHOLDS if args.quick else _THRESHOLDS)
    chunks = args.chunks or (_QUICK_CHUNKS if args.quick else _CHUNKS)
    made = []
    for least, most in chunks:
        segment = replace(bench.config.segment, min_tokens=least, max_tokens=most)
        for tiers in _TIERS[:-1] if args.quick else _TIERS:
            policy = replace(bench.policy, tiers=tiers)
            chosen = sorted(set(thresholds)) if Tier.SIMILAR in tiers else [bench.policy.threshold]
            made += [Setting(segment, replace(policy, threshold=threshold)) for threshold in chosen]
    return made


def _measure_item(
    bench: Bench, item: NearDuplicate, settings: Sequence[Setting], answer_tokens: int, rng: random.Random
) -> Iterator[tuple[Setting, Sample]]:
    full: FullPrefill | None = None
    for segment in dict.fromkeys(each.segment for each in settings):
        with bench.session(segment) as session:
            session.store(item.old)
            # The answer to compare with does not depend on chunks; the time does depend on when it is taken.
            full = full or session.full(item.new, answer_tokens)
            yield from _measure_segment(session, item, full, [s for s in settings if s.segment == segment], rng)


def _measure_segment(
    session: Session, item: NearDuplicate, full: FullPrefill, settings: Sequence[Setting], rng: random.Random
) -> Iterator[tuple[Setting, Sample]]:
    order = rng.sample(settings, len(settings))
    half = len(order) // 2
    measured = {each: session.measure(item.new, full, each.policy) for each in order[:half]}
    full_ttft_s = session.full(item.new, 1).ttft_s
    measured |= {each: session.measure(item.new, full, each.policy) for each in order[half:]}
    for setting in settings:
        yield setting, Sample(measured[setting], full_ttft_s)


def _cells(samples: dict[Setting, list[Sample]]) -> list[dict[str, Any]]:
    cells = []
    for setting, measured in samples.items():
        segment, policy = setting.segment, setting.policy
        shares = [s.measured.report.tokens_by_tier[Tier.SIMILAR] / s.measured.report.prompt_tokens for s in measured]
        cells.append(
            row(
                measured,
                min_tokens=segment.min_tokens,
                max_tokens=segment.max_tokens,
                tiers="+".join(policy.tiers),
                threshold=policy.threshold if Tier.SIMILAR in policy.tiers else None,
                similar_share=mean(shares),
            )
        )
    by_reuse = front([(-cell["reuse_share"], cell["kl_mean"]) for cell in cells])
    by_ttft = front([(cell["ttft_ratio"], cell["kl_mean"]) for cell in cells])
    return [
        {**cell, "pareto": reuse, "pareto_ttft": ttft}
        for cell, reuse, ttft in zip(cells, by_reuse, by_ttft, strict=True)
    ]


def _best(cells: Sequence[Mapping[str, Any]], policy: ReusePolicy, max_kl: float) -> Mapping[str, Any] | None:
    """Recommend a cell; one with the ``substitute`` tier only to a user whose own policy has it."""
    opted_in = Tier.SUBSTITUTE in policy.tiers
    return recommend([c for c in cells if opted_in or Tier.SUBSTITUTE not in c["tiers"].split("+")], max_kl)


def _rises(samples: dict[Setting, list[Sample]]) -> list[str]:
    """Return where a higher threshold reused more of the same prompt; it never may."""
    found = []
    similar = [setting for setting in samples if Tier.SIMILAR in setting.policy.tiers]
    for low, high in pairwise(sorted(similar, key=_place)):
        if _place(low)[:-1] != _place(high)[:-1]:
            continue
        for number, (at_low, at_high) in enumerate(zip(samples[low], samples[high], strict=True)):
            if _donated(at_high) > _donated(at_low):
                found.append(
                    f"prompt {number}, chunks of {low.segment.min_tokens}-{low.segment.max_tokens}: "
                    f"{_donated(at_low)} tokens had a donor at {low.policy.threshold}, "
                    f"{_donated(at_high)} at {high.policy.threshold}"
                )
    return found


def _place(setting: Setting) -> tuple[int, int, tuple[Tier, ...], float]:
    """Return what orders settings so that those that differ in the threshold alone stand together."""
    return setting.segment.min_tokens, setting.segment.max_tokens, setting.policy.tiers, setting.policy.threshold


def _donated(sample: Sample) -> int:
    report = sample.measured.report
    return report.reused_tokens + report.recomputed_tokens


def _write(bench: Bench, best: Any, args: argparse.Namespace) -> str | None:
    if args.write_config is None or best is None:
        return None
    write_config(args.write_config, bench.config, best, args.max_kl)
    return str(args.write_config)


def _table(result: Result) -> str:
    lines = [table(result["cells"], _COLUMNS)]
    best = result["recommended"]
    asked = f"for a mean KL of at most {result['max_kl']}"
    if best is None:
        lines.append(f"no setting {asked}; allow more with --max-kl, or recompute more (policy.recompute_ratio)")
    else:
        lines.append(f"recommended {asked}: " + ", ".join(f"{key} = {value}" for key, value in best.items()))
    if result["config_file"] is not None:
        lines.append(f"wrote {result['config_file']}; pass it with --config")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("threshold", __doc__ or "")
    made.add_argument("--max-kl", type=float, default=0.02, metavar="X", help=_MAX_KL)
    made.add_argument("--write-config", type=Path, metavar="FILE.toml", help="write the recommended setting there")
    made.add_argument("--thresholds", nargs="+", type=float, metavar="X", help="cosine similarities to try")
    made.add_argument("--chunks", nargs="+", type=_chunk, metavar="MIN-MAX", help="chunk sizes to try, such as 16-64")
    return made


def _chunk(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    return int(least), int(most)


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; ``bench`` stands in for the model that the arguments name."""
    return run(Eval("threshold", _parser(), measure, _table, draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
