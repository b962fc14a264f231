"""Cosine of identical, paraphrased, fact-changed and unrelated pairs, per embedder: what a threshold can part.

``rows``
    Lowest, median and highest cosine of each kind of pair, of sentences written by hand and of chunks of real texts,
    and the share that the configured threshold lets pass.
``roc``
    Pairs that are wanted against pairs that are not: ``same_meaning`` (identical and paraphrased) against unrelated
    ones and against those with one changed fact, of the sentences written by hand; ``same_words`` (changed facts:
    these lend most of their tokens to the similar tier) against unrelated ones, of chunks. An area of 1 means that
    some threshold parts them; 0.5 is what a coin does. ``area_paraphrased`` leaves identical pairs out.
``false_nominations_below``
    The highest cosine of an unrelated pair. A threshold at or below it nominates chunks that lend nothing.
``chunks_per_cpu_s``
    Chunks of real text embedded per second of processor time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from evals import _arguments
from evals._arguments import size
from evals._bench import Bench
from evals._embedder_pairs import Chunker, Pair, written
from evals._embedder_plot import draw
from evals._main import Eval, Result, run
from evals._ngrams import HashedNgrams
from evals._roc import roc, share_at
from evals._stale_templates import LANGUAGES
from evals._stale_texts import Texts, read_texts
from evals._table import table
from kvboost.assets import embedder_dir
from kvboost.build import STATIC_BATCH, build_segmenter
from kvboost.errors import InputError
from kvboost.index import SentenceTransformerEmbedder
from kvboost.index.embedder_static import static_embedder_dir
from kvboost.protocols import Embedder
from services.progress import bar, step

_COLUMNS = ("embedder", "source", "language", "kind", "n", "min", "median", "max", "passing_share")
_SPEED_S = 2.0
Cosines = dict[tuple[str, str, str], list[float]]
"""By source, language and kind of pair."""


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Embed all pairs with all embedders."""
    compared = list(_embedders(bench, args))
    texts = read_texts(args)
    pairs = list(_pairs(bench, texts, args))
    chunks = [pair.left for pair in pairs if (pair.source, pair.kind) == ("chunks", "identical")]
    threshold = bench.policy.threshold
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    figures: list[dict[str, Any]] = []
    for embedder in bar(compared, "embedding pairs", total=len(compared), unit="embedder"):
        each = _cosines(embedder, pairs)
        cosines = _by_kind(pairs, each)
        rows += [_row(embedder.name, *key, found, threshold) for key, found in cosines.items()]
        for language in LANGUAGES:
            curves += _curves(embedder.name, language, cosines)
        figures.append(
            {
                "embedder": embedder.name,
                "dim": embedder.dim,
                "chunks_per_cpu_s": _speed(embedder, chunks),
                "false_nominations_below": _highest_unrelated(cosines),
                "closest_unrelated": _closest_unrelated(pairs, each),
            }
        )
    return {
        "rows": rows,
        "roc": curves,
        "embedders": figures,
        "threshold": threshold,
        "chunk_tokens_median": median(len(bench.tokenizer(text)["input_ids"]) for text in chunks),
        "source": texts.source,
    }


def _embedders(bench: Bench, args: argparse.Namespace) -> Iterator[Embedder]:
    if bench.embedder is None:
        raise InputError("there is no embedder to measure; leave out --embedder none")
    yield bench.embedder
    for each in args.compare or ():
        yield SentenceTransformerEmbedder(each)
    source = bench.config.embedder.model
    if isinstance(bench.embedder, SentenceTransformerEmbedder) and source != "static":
        root = static_embedder_dir(embedder_dir(progress=step) if source == "auto" else source, progress=step)
        yield SentenceTransformerEmbedder(root, device="cpu", batch_size=STATIC_BATCH)
    yield HashedNgrams()


def _pairs(bench: Bench, texts: Texts, args: argparse.Namespace) -> Iterator[Pair]:
    segmenter = build_segmenter(bench.config.segment, bench.config.embedder, bench.tokenizer)
    chunker = Chunker(bench.tokenizer, segmenter)
    for language in LANGUAGES:
        yield from written(language)
        found = texts.paragraphs[language]
        if found:
            rng = random.Random(f"{args.seed} {language}")
            yield from chunker.pairs(language, found, size(args, "items", 60, 200), rng)


def _cosines(embedder: Embedder, pairs: Sequence[Pair]) -> list[float]:
    """Return the cosine of each pair.

    Both sides are embedded apart and in another order: an identical text meets its vector from another batch.
    """
    left = _embedded(embedder, [pair.left for pair in pairs])
    right = _embedded(embedder, [pair.right for pair in reversed(pairs)])
    return [float(np.clip(left[pair.left] @ right[pair.right], -1.0, 1.0)) for pair in pairs]


def _by_kind(pairs: Sequence[Pair], cosines: Sequence[float]) -> Cosines:
    found: Cosines = {}
    for pair, cosine in zip(pairs, cosines, strict=True):
        found.setdefault((pair.source, pair.language, pair.kind), []).append(cosine)
    return found


def _closest_unrelated(pairs: Sequence[Pair], cosines: Sequence[float]) -> dict[str, Any]:
    """Return the pair that a threshold would nominate first of those that have nothing to do with each other."""
    unrelated = [(cosine, pair) for cosine, pair in zip(cosines, pairs, strict=True) if pair.kind == "unrelated"]
    cosine, pair = max(unrelated, key=lambda each: each[0])
    return {"cosine": cosine, "left": pair.left, "right": pair.right}


def _embedded(embedder: Embedder, texts: Sequence[str]) -> dict[str, Any]:
    once = list(dict.fromkeys(texts))
    return dict(zip(once, embedder.embed(once), strict=True))


def _curves(name: str, language: str, cosines: Cosines) -> Iterator[dict[str, Any]]:
    def of(source: str, kind: str) -> list[float]:
        return cosines.get((source, language, kind), [])

    same = [*of("written", "identical"), *of("written", "paraphrased")]
    for kind in ("unrelated", "changed"):
        other = of("written", kind)
        paraphrased = roc(of("written", "paraphrased"), other).area
        curve = {**roc(same, other).to_json(), "area_paraphrased": paraphrased}
        yield {"embedder": name, "language": language, "wanted": "same_meaning", "against": kind, **curve}
    if of("chunks", "changed"):
        curve = roc(of("chunks", "changed"), of("chunks", "unrelated")).to_json()
        yield {"embedder": name, "language": language, "wanted": "same_words", "against": "unrelated", **curve}


def _highest_unrelated(cosines: Cosines) -> dict[str, float]:
    """Return the highest cosine of an unrelated pair, by language."""
    return {
        language: max(max(v) for (_, spoken, kind), v in cosines.items() if (spoken, kind) == (language, "unrelated"))
        for language in LANGUAGES
    }


def _row(
    name: str, source: str, language: str, kind: str, cosines: Sequence[float], threshold: float
) -> dict[str, Any]:
    return {
        "embedder": name,
        "source": source,
        "language": language,
        "kind": kind,
        "n": len(cosines),
        "min": min(cosines),
        "median": median(cosines),
        "max": max(cosines),
        "passing_share": share_at(cosines, threshold),
        "quantiles": np.quantile(cosines, np.linspace(0, 1, 11)).tolist(),
    }


def _speed(embedder: Embedder, texts: Sequence[str]) -> float:
    """Return how many chunks are embedded per second of processor time, over all threads."""
    embedder.embed(texts[:8])
    done, start = 0, time.process_time()
    while time.process_time() - start < _SPEED_S:
        embedder.embed(texts)
        done += len(texts)
    return done / (time.process_time() - start)


def _table(result: Result) -> str:
    speeds = [
        {
            "embedder": each["embedder"],
            "chunks_per_cpu_s": each["chunks_per_cpu_s"],
            **{f"false_below_{language}": value for language, value in each["false_nominations_below"].items()},
        }
        for each in result["embedders"]
    ]
    areas = table(result["roc"], ("embedder", "language", "wanted", "against", "area", "area_paraphrased"))
    return "\n\n".join([table(result["rows"], _COLUMNS), areas, table(speeds, list(speeds[0]))])


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("embedders", (__doc__ or "").partition("\n")[0])
    made.add_argument("--compare", action="append", metavar="MODEL", help="one more hub id or directory; repeatable")
    return made


def main(argv: Sequence[str] | None = None, bench: Bench | None = None) -> int:
    """Run from the command line."""
    return run(Eval("embedders", _parser(), measure, _table, draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
