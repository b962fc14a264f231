"""Loss against full prefill, by repair strategy, budget and task, with the baselines beside it."""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from statistics import mean
from typing import Any

from evals import _arguments
from evals._arguments import size
from evals._bench import Bench, Deadline
from evals._main import Eval, Result, run
from evals._quality_items import LOADED, Measured, measure_item, other_precision, precision_noise
from evals._quality_plot import draw
from evals._quality_summary import summarise
from evals._rows import Sample, mean_scores, row
from evals._table import table
from evals._tasks import Item, Sizes, Task, make_tasks
from evals._variants import BUDGETS, Variant, core_variants, variants
from kvboost.errors import InputError
from kvboost.runtime.repair import STRATEGIES
from services.progress import bar

_NOISE_ITEMS = 2
_COLUMNS = (
    "task", "repair", "recompute_ratio", "recompute_ratio_charged", "kl_mean", "kl_over_rotate_only",
    "top1_agreement", "first_divergence", "same_answer_share", "reuse_share", "ttft_ratio", "containment", "token_f1",
    "n",
)  # fmt: skip


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Measure every policy on every task."""
    # A quick run runs all strategies on the first prompt alone, and glances at the other tasks.
    sizes = Sizes(size(args, "items", 5, 12), size(args, "documents", 4, 6), size(args, "document_tokens", 340, 340))
    answer_tokens = size(args, "answer_tokens", 32, 48)
    deadline = Deadline(args.quick)
    tasks = _asked(make_tasks(bench.tokenizer, sizes, args), args)
    collected = _Collected()
    schedule = _schedule(tasks, args.quick)
    for task, number in bar(schedule, "prompts", total=len(schedule), unit="prompt"):
        if deadline.passed():
            break
        chosen = _chosen(bench, args, glance=args.quick and (number > 0 or task is not tasks[0]))
        rng = random.Random(f"{args.seed} {task.name} {number}")
        noise = number < (1 if args.quick else _NOISE_ITEMS) and task is tasks[0]
        item = task.items[number]
        collected.add(item, chosen, measure_item(bench, item, chosen, answer_tokens, rng, noise), noise)
    rows = [*collected.rows(), *_precision_rows(bench, tasks[0].name, collected)]
    done = {each["task"] for each in rows}
    return {
        "rows": rows,
        "default_policy": asdict(bench.config.policy),
        "summary": summarise(rows, tasks[0].name, bench.policy.repair),
        "sizes": {**asdict(sizes), "answer_tokens": answer_tokens},
        "sources": {task.name: task.source for task in tasks if task.name in done},
        "stopped_early": deadline.stopped,
    }


class _Collected:
    """Samples by task and variant."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, str, float, bool], list[Sample]] = defaultdict(list)
        self.rotate_only: dict[str, list[Sample]] = defaultdict(list)
        self.full: dict[str, list[Measured]] = defaultdict(list)
        self.noisy: list[tuple[Item, Measured]] = []

    def add(self, item: Item, chosen: list[Variant], measured: Measured, noise: bool) -> None:
        """Take the measurements of one prompt."""
        self.full[item.task].append(measured)
        if noise:
            self.noisy.append((item, measured))
        for each, sample in zip(chosen, measured.samples, strict=True):
            self.samples[item.task, each.repair, each.recompute_ratio, each.policy.shift].append(sample)
            if each.repair == "none":
                self.rotate_only[item.task].append(sample)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return full prefill, then the policies, task by task."""
        for task, measured in self.full.items():
            own = mean_scores([each.full_scores for each in measured])
            yield {**_full_row(task, "full"), **own, "n": len(measured)}
            loaded = [each.loaded for each in measured if each.loaded is not None]
            if loaded:
                yield row(loaded, self.rotate_only[task][: len(loaded)], task=task, repair=LOADED, recompute_ratio=0.0)
            for (of, repair, ratio, shift), samples in self.samples.items():
                if of == task:
                    # Every prompt has a sample of rotate only; those of a policy are the first of them.
                    rotate_only = self.rotate_only[task][: len(samples)]
                    yield row(samples, rotate_only, task=task, repair=repair, recompute_ratio=ratio, shift=shift)


def _full_row(task: str, repair: str) -> dict[str, Any]:
    same = {"kl_mean": 0.0, "top1_agreement": 1.0, "reuse_share": 0.0, "ttft_ratio": 1.0}
    return {"task": task, "repair": repair, "recompute_ratio": 0.0, **same}


def _precision_rows(bench: Bench, task: str, collected: _Collected) -> list[dict[str, Any]]:
    if not collected.noisy:
        return []
    losses = precision_noise(bench.model, [(item, measured.full) for item, measured in collected.noisy])
    name = f"full, {str(other_precision(bench.model)).removeprefix('torch.')}"
    kl_mean = mean(each.kl_mean for each in losses)
    rotate_only = mean(s.measured.loss.kl_mean for s in collected.rotate_only[task][: len(losses)])
    figures = {
        "kl_mean": kl_mean,
        "kl_over_rotate_only": kl_mean / rotate_only if rotate_only > 0.0 else None,
        "top1_agreement": mean(each.top1_agreement for each in losses),
        "ttft_ratio": None,
        "n": len(losses),
    }
    return [{**_full_row(task, name), **figures}]


def _chosen(bench: Bench, args: argparse.Namespace, glance: bool) -> list[Variant]:
    made = core_variants(bench.policy) if glance else variants(bench.policy, args.quick)
    wanted = {"none", *(args.repairs or STRATEGIES)}
    return [each for each in made if each.policy.repair in wanted]


def _asked(tasks: list[Task], args: argparse.Namespace) -> list[Task]:
    known = {task.name for task in tasks}
    unknown = sorted(set(args.tasks or ()) - known)
    if unknown:
        raise InputError(f"--tasks {unknown[0]} is unknown here; there are {', '.join(sorted(known))}")
    return [task for task in tasks if not args.tasks or task.name in args.tasks]


def _schedule(tasks: list[Task], quick: bool) -> list[tuple[Task, int]]:
    """Return prompts in turns over the tasks; in a quick run, all of the first task and one of each other."""
    if quick:
        first, *others = tasks
        return [*((first, number) for number in range(len(first.items))), *((task, 0) for task in others)]
    longest = max(len(task.items) for task in tasks)
    return [(task, number) for number in range(longest) for task in tasks if number < len(task.items)]


def _table(result: Result) -> str:
    kept = [name for name in _COLUMNS if any(name in each for each in result["rows"])]
    lines = [table(result["rows"], kept)]
    if result["stopped_early"]:
        lines.append("time was up: fewer prompts than asked for")
    summary = result["summary"]
    for budget, ratio in summary["kl_over_rotate_only"].items():
        lines.append(f"{summary['task']}: mean KL at {budget} is {ratio:.2f} of rotate-only's "
                     f"(asked: at most {summary['bounds'][budget]})")  # fmt: skip
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("quality", __doc__ or "")
    made.add_argument("--tasks", nargs="+", metavar="NAME", help="only these tasks (default: all there are)")
    made.add_argument("--repairs", nargs="+", metavar="NAME", choices=sorted(STRATEGIES), help="only these strategies; "
                      f"each runs at budgets {', '.join(map(str, BUDGETS))}")  # fmt: skip
    return made


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; ``bench`` stands in for the model that the arguments name."""
    return run(Eval("quality", _parser(), measure, _table, draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
