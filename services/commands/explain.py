"""``kvboost explain``: what a cache would lend to a prompt, token by token."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from kvboost.build import build_cache, build_embedder
from kvboost.config import Config, ModelConfig

from ..progress import bar, step
from ..prompts import prompt_ids, read_prompt
from .config import add_config_arguments, load_from_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kvboost.protocols import ChunkCache
    from kvboost.reuse import ReuseReport
    from kvboost.runtime.serve.engine import Engine

    from ..reuse_map import ReuseMap

HELP = "show which tokens of a prompt a cache would lend, and from which tier"
EXAMPLE = "kvboost explain new.txt --after old.txt --png map.png"
EXTRA = "runtime"
_SPAN_FIELDS = ("tier", "similarity", "repaired")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_prompt_arguments(parser)
    parser.add_argument("--html", metavar="OUT", type=Path, help="write the map as HTML, with a tooltip per token")
    parser.add_argument("--png", metavar="OUT", type=Path, help="write the map as a picture")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the map")


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what names the prompt, the model and the cache; ``kvboost plan`` takes it too."""
    add_config_arguments(parser)
    parser.add_argument(
        "file",
        metavar="FILE",
        help="the prompt: a text, or a chat if the name ends in .json (a list of role and content); - for stdin",
    )
    parser.add_argument("--cache", metavar="ADDRESS", help="host:port or unix:/path of a running cache service")
    parser.add_argument("--model", metavar="MODEL", help="hub id or local directory (default: the demo model)")
    parser.add_argument(
        "--after", metavar="FILE", action="append", default=[], help="a prompt to run and store first; repeatable"
    )


def run(args: argparse.Namespace) -> int:
    """Prepare the prompt as a request would be, run nothing and store nothing of it, and show the result."""
    config = load_from_arguments(args, cache__address=args.cache, model__name_or_path=args.model).config
    with engine_and_prompt(config, args) as (engine, ids):
        explained = _explain(engine, ids)
    _show(explained, _page(explained, args.file, f"Looked up in {where(config)}.", hint(config, args)), args)
    return 0


@contextmanager
def engine_and_prompt(config: Config, args: argparse.Namespace) -> Iterator[tuple[Engine, list[int]]]:
    """Boost the model, run and store the prompts of ``--after``, and give the engine and the prompt's tokens."""
    from kvboost import boost, engine_of, unboost

    earlier, prompt = [read_prompt(name) for name in args.after], read_prompt(args.file)
    model, tokenizer = _load(config.model)
    with closing(_cache(config)) as cache:
        boost(model, tokenizer, cache, config=config)
        try:
            engine = engine_of(model)
            for one in bar(earlier, "Running the prompts before", unit="prompt"):
                _run_and_store(engine, prompt_ids(one, tokenizer))
            yield engine, prompt_ids(prompt, tokenizer)
        finally:
            unboost(model)


def where(config: Config) -> str:
    """Name the cache that is asked."""
    return f"the cache at {config.cache.address}" if config.cache.address else "a cache in this process"


@dataclass(frozen=True, slots=True)
class _Explained:
    """A prompt's report, and the text of its tokens."""

    report: ReuseReport
    texts: list[str]


def _load(model: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from kvboost.runtime.model.demo_model import load_model

    return load_model(model.name_or_path, model.dtype, device=model.device, revision=model.revision, progress=step)


def _cache(config: Config) -> ChunkCache:
    if not config.cache.address:
        build_embedder(config.embedder, progress=step)
    return build_cache(config.cache, config.client, config.embedder)


def _run_and_store(engine: Engine, ids: list[int]) -> None:
    """Run one prompt, and wait until a similar one could find it."""
    from kvboost.index import LocalCache
    from kvboost.runtime.tools.explain import run_and_store

    run_and_store(engine, ids)
    if isinstance(engine.cache, LocalCache):
        engine.cache.flush()


def _explain(engine: Engine, ids: list[int]) -> _Explained:
    from kvboost.runtime.tools.explain import explain
    from kvboost.segment.offsets import TokenTexts

    with step("Preparing the prompt"):
        report = explain(engine, ids)
    tokens = TokenTexts(engine.tokenizer)(ids)
    return _Explained(report, [tokens.text[a:b] for a, b in pairwise(tokens.starts)])


def hint(config: Config, args: argparse.Namespace) -> str:
    """Return what to do where nothing can be found, or an empty text."""
    if config.cache.address or args.after:
        return ""
    return (
        "It starts empty: name a running one with --cache (kvboost serve-cache), or prompts to run first with --after."
    )


def _page(explained: _Explained, name: str, source: str, advice: str) -> ReuseMap:
    from ..reuse_map import ReuseMap, map_tokens

    report = explained.report
    share = report.reused_tokens / report.prompt_tokens
    facts = [f"{source} {advice}".strip()]
    facts.append(f"{report.reused_tokens:,} of {report.prompt_tokens:,} prompt tokens would be reused ({share:.1%}).")
    if report.saved_s:
        facts.append(f"Prefill saved, less fetch and repair: {report.saved_s:.2f} s, as estimated.")
    if report.fallback is not None:
        facts.append(f"Full prefill: {report.fallback}")
    facts += [f"Not used: {reason}." for reason in report.declined]
    title = "the prompt" if name == "-" else Path(name).name
    return ReuseMap(f"Reuse map of {title}", map_tokens(explained.texts, report.spans), tuple(facts))


def _show(explained: _Explained, page: ReuseMap, args: argparse.Namespace) -> None:
    from ..reuse_map import supports_colour, to_ansi, to_plain, write_html, write_png

    if args.json:
        print(json.dumps(_figures(explained.report), indent=2))
    else:
        print(to_ansi(page) if supports_colour() else to_plain(page))
    for write, path in ((write_png, args.png), (write_html, args.html)):
        if path:
            print(f"wrote {write(page, path)}", file=sys.stderr)


def _figures(report: ReuseReport) -> dict[str, object]:
    return {
        "prompt_tokens": report.prompt_tokens,
        "reused_tokens": report.reused_tokens,
        "tokens_by_tier": dict(report.tokens_by_tier),
        "recomputed_tokens": report.recomputed_tokens,
        "recompute_ratio": report.recompute_ratio,
        "similarity": report.similarity,
        "saved_s": report.saved_s,
        "declined": list(report.declined),
        "fallback": report.fallback,
        "spans": [asdict(piece.span) | {name: getattr(piece, name) for name in _SPAN_FIELDS} for piece in report.spans],
    }
