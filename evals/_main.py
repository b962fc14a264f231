"""The frame around every eval: load, measure, draw, write."""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evals._bench import Bench
from evals._origin import origin
from kvboost.build import build_embedder
from kvboost.config import load
from kvboost.errors import InputError, KVBoostError
from kvboost.runtime.model.demo_model import load_model
from services.progress import step

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Eval:
    """One eval.

    Attributes
    ----------
    measure
        Returns the result, JSON-ready.
    table
        Returns the result as text for the terminal.
    draw
        Draws the result into a PNG file.
    """

    name: str
    parser: argparse.ArgumentParser
    measure: Callable[[Bench, argparse.Namespace], Result]
    table: Callable[[Result], str]
    draw: Callable[[Result, Path], None]


@dataclass(frozen=True, slots=True)
class PlainEval:
    """An eval that needs no model; otherwise as :class:`Eval`."""

    name: str
    parser: argparse.ArgumentParser
    measure: Callable[[argparse.Namespace], Result]
    table: Callable[[Result], str]
    draw: Callable[[Result, Path], None]


def run(chosen: Eval, argv: Sequence[str] | None = None, bench: Bench | None = None) -> int:
    """Run one eval from its command line.

    The exit status is 1 if the result lists ``failures``, and 2 for a mistake in what the user gave.

    ``bench`` stands in for the model that the arguments name.
    """

    def measure(args: argparse.Namespace) -> Result:
        loaded = bench or load_bench(args)
        head = {
            "model": loaded.model.config._name_or_path or type(loaded.model).__name__,
            "namespace": loaded.namespace(),
            "embedder": None if loaded.embedder is None else loaded.embedder.name,
        }
        return {**head, **chosen.measure(loaded, args)}

    return run_plain(PlainEval(chosen.name, chosen.parser, measure, chosen.table, chosen.draw), argv)


def run_plain(chosen: PlainEval, argv: Sequence[str] | None = None) -> int:
    """Run an eval that loads for itself what it needs; the exit status is that of :func:`run`."""
    args = chosen.parser.parse_args(argv)
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        _check_outputs(args)
        if args.threads is not None:
            torch.set_num_threads(args.threads)
        head = {"eval": chosen.name, "argv": given, "quick": args.quick, "seed": args.seed, **origin()}
        result = {**head, **chosen.measure(args)}
    except KVBoostError as error:
        print(f"python -m evals.{chosen.name}: {error}", file=sys.stderr)
        return 2
    print(chosen.table(result))
    if args.plot is not None:
        chosen.draw(result, args.plot)
        print(f"drew {args.plot}")
    text = to_json(result)
    if args.json is not None:
        args.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    for failure in result.get("failures", ()):
        print(f"python -m evals.{chosen.name}: failed: {failure}", file=sys.stderr)
    return int(bool(result.get("failures")))


def load_bench(args: argparse.Namespace) -> Bench:
    """Load model and embedder as the configuration and the arguments say."""
    overrides = {"model.name_or_path": args.model, "embedder.model": args.embedder}
    config = load(args.config, overrides=overrides).config
    wanted = config.model
    model, tokenizer = load_model(
        wanted.name_or_path, wanted.dtype, device=wanted.device, revision=wanted.revision, progress=step
    )
    # transformers warns of settings for sampling that greedy decoding does not use.
    warnings.filterwarnings("ignore", message=".*generation flags are not valid.*")
    return Bench(model, tokenizer, config, build_embedder(config.embedder, step))


def to_json(result: Mapping[str, Any]) -> str:
    """Return the result on one line; a figure that is no number would pass for one, so it raises.

    Raises
    ------
    InputError
        Naming the first figure that is NaN or infinite.
    """
    bad = _not_finite(result, "")
    if bad:
        raise InputError(f"{bad} is not a finite number, so the result means nothing; the model's logits may overflow")
    return json.dumps(result, ensure_ascii=False, allow_nan=False)


def _not_finite(value: Any, path: str) -> str | None:
    """Return where the first figure is that is no finite number, as a dotted path."""
    if isinstance(value, float) and not math.isfinite(value):
        return path
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    found = (_not_finite(part, f"{path}.{key}".lstrip(".")) for key, part in parts)
    return next((bad for bad in found if bad is not None), None)


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse, before minutes of work, a place that cannot be written to."""
    for option in ("json", "plot"):
        path: Path | None = getattr(args, option)
        if path is not None and not path.parent.is_dir():
            raise InputError(f"--{option} {path}: folder {path.parent} does not exist; make it first")
