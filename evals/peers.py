"""This project beside plain transformers, its two ways of prefix reuse and the registry's kvboost: wait, closeness."""

from __future__ import annotations

import argparse
import base64
import json
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from evals import _arguments
from evals._arguments import size
from evals._bench import Bench, Deadline
from evals._main import Eval, Result, run
from evals._peer_workloads import Workload, workloads
from evals._plots import COLOURS, figure, legend_beside
from evals._table import table
from evals._workers import Worker, worker
from kvboost.errors import InputError
from kvboost.runtime.tools.score import loss
from services.progress import bar

REFERENCE, OURS, PEER = "transformers", "ours", "peer"
_WORKER = Path(__file__).with_name("_peer_worker.py")
_NAMES = (REFERENCE, "own prefix", "continuous batching", OURS, PEER)
_COLUMNS = (
    "workload", "cell", "backend", "ttft_s", "ttft_over_plain", "call_s", "reuse", "equal_share", "first_difference",
    "kl_first", "errors", "n",
)  # fmt: skip
# Below this, first-token KL is the noise of one float32 sum in another order.
_KL_NOISE = 1e-5
Answers = dict[tuple[str, str, str], list[tuple[dict[str, Any], dict[str, Any]]]]


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Run every workload on every backend, round by round; who goes first is drawn anew each time."""
    model = bench.model.config._name_or_path
    own = [name for name in _NAMES[:-1] if name == REFERENCE or name in (args.backends or _NAMES)]
    pythons = dict.fromkeys(own, sys.executable)
    if args.peer_python is not None:
        found = shutil.which(args.peer_python)
        if found is None:
            raise InputError(f"--peer-python {args.peer_python} is no program; give the interpreter of its environment")
        pythons[PEER] = found
    settings = {
        "model": str(Path(model).resolve()) if Path(model).is_dir() else model,
        "embedder": args.embedder or bench.config.embedder.model,
        "peer_strategy": args.peer_strategy,
        "threads": args.threads,
    }
    asked = workloads(bench.tokenizer, args.tokens or (400 if args.quick else 1400), args.seed)
    rounds = args.repetitions or (2 if args.quick else 5)
    answer_tokens = size(args, "answer_tokens", 16, 32)
    deadline = Deadline(args.quick)
    answers: Answers = defaultdict(list)
    with ExitStack() as stack:
        running = {name: stack.enter_context(_backend(name, python, settings)) for name, python in pythons.items()}
        for backend in running.values():
            backend.hear()
            # The first pass and the first embedding are nobody's wait.
            for prompt in (asked[-1].steps[0].prompts[0], asked[-1].steps[0].prompts[0][:-40]):
                _generate(backend, [prompt], 2)
        _run_rounds(running, asked, rounds, answer_tokens, deadline, args.seed, answers)
    cells = [(each.name, step.cell) for each in asked for step in each.steps]
    order = sorted(answers, key=lambda key: (cells.index(key[:2]), _NAMES.index(key[2])))
    rows = [_row(*key, answers[key]) for key in order]
    return {
        "rows": [{**row, "ttft_over_plain": _over_plain(row, rows)} for row in rows],
        "comparison": _comparison(rows),
        "peer": PEER in pythons,
        "rounds": rounds,
        "answer_tokens": answer_tokens,
        "stopped_early": deadline.stopped,
    }


@contextmanager
def _backend(name: str, python: str, settings: dict[str, Any]) -> Iterator[Worker]:
    # Isolated: neither this checkout nor the folder of the file may stand before the packages of the environment.
    command = [python, "-I", str(_WORKER), json.dumps({**settings, "backend": name})]
    with worker(f"backend {name!r}", command) as started:
        yield started


def _generate(backend: Worker, prompts: Sequence[str], new_tokens: int) -> list[dict[str, Any]]:
    """Answer the prompts, at the same time if they are several."""
    command = {"do": "ask", "prompts": list(prompts), "new_tokens": new_tokens}
    answers: list[dict[str, Any]] = backend.ask(command)["answers"]
    return answers


def _run_rounds(
    running: Mapping[str, Worker],
    asked: Sequence[Workload],
    rounds: int,
    answer_tokens: int,
    deadline: Deadline,
    seed: int,
    answers: Answers,
) -> None:
    rng = random.Random(f"{seed} order")
    schedule = [(number, workload) for number in range(rounds) for workload in rng.sample(list(asked), len(asked))]
    for number, workload in bar(schedule, "workloads", total=len(schedule), unit="workload"):
        if number > 0 and deadline.passed():
            return
        of: dict[str, list[list[dict[str, Any]]]] = {}
        for name in rng.sample(list(running), len(running)):
            running[name].ask({"do": "reset"})
            of[name] = [_generate(running[name], step.prompts, answer_tokens) for step in workload.steps]
        for name, steps in of.items():
            for step, own, plain in zip(workload.steps, steps, of[REFERENCE], strict=True):
                if step.cell:
                    answers[workload.name, step.cell, name] += list(zip(own, plain, strict=True))


def _row(
    workload: str, cell: str, backend: str, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]
) -> dict[str, Any]:
    whole = [(own, plain) for own, plain in pairs if "error" not in own and own["ttft_s"] is not None]
    row: dict[str, Any] = {"workload": workload, "cell": cell, "backend": backend, "n": len(pairs)}
    row["errors"] = len(pairs) - len(whole)
    if not whole:
        return {**row, "error": next((own["error"] for own, _ in pairs if "error" in own), "no token came")}
    differences = [_first_difference(own["tokens"], plain["tokens"]) for own, plain in whole]
    kls = [kl for own, plain in whole if (kl := _kl(own["logits"], plain["logits"])) is not None]
    return {
        **row,
        "ttft_s": median(own["ttft_s"] for own, _ in whole),
        "ttft_range_s": [min(own["ttft_s"] for own, _ in whole), max(own["ttft_s"] for own, _ in whole)],
        "call_s": median(own["call_s"] for own, _ in whole),
        "reuse": _mean_known([own["reuse"] for own, _ in whole]),
        "equal_share": mean(_equal_share(own["tokens"], plain["tokens"]) for own, plain in whole),
        "same_answer_share": mean(float(own["tokens"] == plain["tokens"]) for own, plain in whole),
        "first_difference": min((at for at in differences if at is not None), default=None),
        "kl_first": mean(kls) if kls else None,
    }


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _comparison(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each cell, whether ours is the shorter wait and whether it is closer to plain transformers."""
    by_key = {(row["workload"], row["cell"], row["backend"]): row for row in rows}
    made = []
    for workload, cell in dict.fromkeys((row["workload"], row["cell"]) for row in rows):
        ours, peer = by_key.get((workload, cell, OURS)), by_key.get((workload, cell, PEER))
        if ours is None or peer is None or ours["errors"] == ours["n"]:
            continue
        failed = peer["errors"] == peer["n"]
        made.append(
            {
                "workload": workload,
                "cell": cell,
                "wait_over_peer": None if failed else ours["ttft_s"] / peer["ttft_s"],
                "shorter_wait": failed or ours["ttft_s"] < peer["ttft_s"],
                "reuse": ours["reuse"],
                "peer_reuse": None if failed else peer["reuse"],
                "closeness": "closer" if failed else _closeness(ours, peer),
            }
        )
    return made


def _closeness(ours: Mapping[str, Any], peer: Mapping[str, Any]) -> str:
    """Compare equal tokens, then KL of the first token; either is ``mixed`` if they contradict each other."""
    verdicts = {_sign(ours["equal_share"] - peer["equal_share"], 0.0)}
    if ours["kl_first"] is not None and peer["kl_first"] is not None:
        verdicts.add(_sign(peer["kl_first"] - ours["kl_first"], _KL_NOISE))
    verdicts -= {0} if len(verdicts) > 1 else set()
    if len(verdicts) > 1:
        return "mixed"
    return {1: "closer", 0: "equal", -1: "farther"}[verdicts.pop()]


def _sign(value: float, noise: float) -> int:
    return (value > noise) - (value < -noise)


def _over_plain(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float | None:
    plain = [
        r for r in rows if r["backend"] == REFERENCE and (r["workload"], r["cell"]) == (row["workload"], row["cell"])
    ]
    return row["ttft_s"] / plain[0]["ttft_s"] if "ttft_s" in row and plain and "ttft_s" in plain[0] else None


def _first_difference(own: Sequence[int], plain: Sequence[int]) -> int | None:
    at = next((i for i, (a, b) in enumerate(zip(own, plain, strict=False)) if a != b), min(len(own), len(plain)))
    return None if at == len(own) == len(plain) else at


def _equal_share(own: Sequence[int], plain: Sequence[int]) -> float:
    longest = max(len(own), len(plain))
    return sum(a == b for a, b in zip(own, plain, strict=False)) / longest if longest else 1.0


def _kl(own: str | None, plain: str | None) -> float | None:
    if own is None or plain is None:
        return None
    return loss(_logits(plain), _logits(own)).kl_first


def _logits(raw: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(raw), dtype=np.float32).copy())[None]


def _table(result: Result) -> str:
    lines = [table(result["rows"], _COLUMNS)]
    if result["comparison"]:
        columns = ("workload", "cell", "wait_over_peer", "shorter_wait", "closeness", "reuse", "peer_reuse")
        lines += ["", "ours against the peer", table(result["comparison"], columns)]
    if not result["peer"]:
        lines.append("without the peer: give --peer-python, the interpreter of an environment with kvboost 0.9.0")
    if result["stopped_early"]:
        lines.append("time was up: fewer rounds than asked for")
    return "\n".join(lines)


def _draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the wait over plain transformers' and the share of equal tokens, by cell and backend."""
    cells = list(dict.fromkeys((row["workload"], row["cell"]) for row in result["rows"]))
    names = [name for name in _NAMES if any(row["backend"] == name for row in result["rows"])]
    with figure(path, "Beside plain transformers", columns=2, width=6.0) as axes:
        for axis, key, title in (
            (axes[0], "ttft_over_plain", "Wait over plain transformers' (lower is better)"),
            (axes[1], "equal_share", "Answer tokens equal to plain transformers'"),
        ):
            for i, name in enumerate(names):
                own = {(row["workload"], row["cell"]): row.get(key) for row in result["rows"] if row["backend"] == name}
                at = [j + (i - (len(names) - 1) / 2) * 0.9 / len(names) for j in range(len(cells))]
                values = [own.get(cell) or 0.0 for cell in cells]
                axis.barh(at, values, height=0.8 / len(names), color=COLOURS[i], label=name)
            axis.set_yticks(range(len(cells)), [f"{workload}: {cell}" for workload, cell in cells])
            axis.invert_yaxis()
            axis.set_title(title)
        legend_beside(axes[1])


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("peers", __doc__ or "")
    peer = made.add_argument_group("peers")
    peer.add_argument("--peer-python", metavar="FILE", help="interpreter of an environment with kvboost 0.9.0 in it")
    peer.add_argument("--backends", nargs="+", choices=_NAMES[1:-1], help="beside transformers and the peer (both)")
    peer.add_argument("--peer-strategy", default="selective", metavar="NAME", help="its recompute strategy (selective)")
    peer.add_argument("--tokens", type=int, metavar="N", help="tokens of a context (default: 1400; 400 with --quick)")
    peer.add_argument("--repetitions", type=int, metavar="N", help="rounds (default: 5; 2 with --quick)")
    return made


def main(argv: list[str] | None = None, bench: Bench | None = None) -> int:
    """Run the eval; ``bench`` stands in for the model that the arguments name, which must be a local directory."""
    return run(Eval("peers", _parser(), measure, _table, _draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
