"""The command line that all evals share."""

from __future__ import annotations

import argparse
from pathlib import Path

_PROMPTS = (
    "your own prompts, one JSON object a line: "
    '{"contexts": ["..."], "question": "...", "answer": "..."}; the answer may be missing'
)


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of ``python -m evals.NAME`` with the arguments common to all evals of a model."""
    made = bare_parser(name, description)
    what = made.add_argument_group("on what it is measured")
    what.add_argument("--model", metavar="DIR", help="local directory or hub id (default: as configured)")
    what.add_argument("--embedder", metavar="MODEL", help="auto, a hub id, a local directory, or none")
    what.add_argument("--config", metavar="FILE", help="configuration file (default: kvboost.toml, if it is there)")
    what.add_argument("--data", type=Path, metavar="DIR", help="folder of data sets; without it, texts made here")
    what.add_argument("--prompts", type=Path, metavar="FILE.jsonl", help=_PROMPTS)
    size = made.add_argument_group("size (default: the eval's own, smaller with --quick)")
    size.add_argument("--items", type=_positive, metavar="N", help="prompts per task")
    size.add_argument("--documents", type=_positive, metavar="N", help="documents per prompt")
    size.add_argument("--document-tokens", type=_positive, metavar="N", help="tokens per document, about")
    size.add_argument("--answer-tokens", type=_positive, metavar="N", help="answer tokens over which loss is averaged")
    return made


def bare_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return the parser with the arguments of those evals, too, that need no model."""
    made = argparse.ArgumentParser(prog=f"python -m evals.{name}", description=description)
    out = made.add_argument_group("output")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the result there; it is printed as well")
    out.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the result there")
    what = made.add_argument_group("what is measured")
    what.add_argument("--quick", action="store_true", help="end within two minutes on two idle cores; noisier")
    what.add_argument(
        "--seed", type=int, default=0, help="what is drawn: documents, orders, edits, vectors (default: 0)"
    )
    what.add_argument("--threads", type=_positive, metavar="N", help="threads of torch (default: torch's own)")
    return made


def size(args: argparse.Namespace, name: str, quick: int, full: int) -> int:
    """Return the size that the user gave, or the eval's own for this form."""
    given: int | None = getattr(args, name)
    return given if given is not None else (quick if args.quick else full)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value
