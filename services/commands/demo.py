"""``kvboost demo``: everything at work on this machine, with real documents and a real model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvboost.config import ModelConfig
from kvboost.errors import InputError

from ..progress import bar, step
from .config import add_config_arguments, load_from_arguments

if TYPE_CHECKING:
    from ..demo.outcome import Outcome
    from ..demo.sustained import Sustained

HELP = "start a cache server and a runtime, run four requests through them, and draw what was reused"
EXAMPLE = "kvboost demo --json demo.json --out demo-out"
EXTRA = "demo"
_REQUESTS = 100
_QUICK_REQUESTS = 30


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_config_arguments(parser)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("demo-out"), help="where the maps go (default: demo-out)"
    )
    parser.add_argument("--model", metavar="MODEL", help="hub id or local directory (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the orders of documents (default: 0)")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_REQUESTS} sustained requests, not {_REQUESTS}")


def run(args: argparse.Namespace) -> int:
    """Run the four requests, then the sustained ones; print, draw and write the figures."""
    from ..demo.figures import figures
    from ..demo.run import four_requests, running_servers
    from ..demo.show import outcome_lines, paths_lines, summary, sustained_lines
    from ..fetching import fetch_assets, with_absolute_paths
    from ..processes import ended_like_ctrl_c

    _check_writable(args)
    config = load_from_arguments(args, model__name_or_path=args.model).config
    config = with_absolute_paths(config)
    with ended_like_ctrl_c():
        fetch_assets(config)
        with running_servers(config) as servers:
            print(f"{servers.info.model}\na cache server and a runtime, each in a process of its own", flush=True)
            outcomes = four_requests(servers, args.seed, lambda one: print(outcome_lines(one), flush=True))
        print(summary(outcomes), flush=True)
        paths = _draw(outcomes, args.out)
        result = _sustained(config.model, args)
    print(sustained_lines(result))
    print(paths_lines(paths))
    if args.json:
        text = json.dumps(figures(outcomes, result, servers.info, args.seed), indent=2)
        args.json.write_text(text + "\n", encoding="utf-8")
        print(f"\nfigures\n  {args.json}")
    return 0


def _check_writable(args: argparse.Namespace) -> None:
    """Fail now, not after minutes of work."""
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.open("a", encoding="utf-8").close()
    except OSError as error:
        raise InputError(f"{error.filename} cannot be written ({error.strerror}); give another path") from error


def _draw(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    from ..reuse_map import write_html, write_png

    paths = []
    with step("Drawing reuse maps"):
        for outcome in outcomes:
            page = outcome.page()
            paths.append(write_png(page, folder / f"{outcome.request.name}.png"))
            paths.append(write_html(page, folder / f"{outcome.request.name}.html"))
    return paths


def _sustained(chosen: ModelConfig, args: argparse.Namespace) -> Sustained:
    from kvboost.runtime.model.demo_model import load_model

    from ..demo.documents import short_documents
    from ..demo.sustained import sustained

    model, tokenizer = load_model(
        chosen.name_or_path, chosen.dtype, device=chosen.device, revision=chosen.revision, progress=step
    )
    return sustained(
        model,
        tokenizer,
        short_documents(),
        requests=_QUICK_REQUESTS if args.quick else _REQUESTS,
        seed=args.seed,
        show=lambda prompts: bar(prompts, "Sustained re-ordering", unit="request"),
    )
