"""Attention over cached chunks where they lie, beside attention over one slab that they were copied into.

Chunks could stay where they are: the query is rotated by minus each chunk's shift, attends to every chunk on its own,
and the partial results are merged by the log-sum-exp of their scores. That spares the copy and the rotation of the
keys. No model is needed: the tensors are random, of one layer in the demo model's shape.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from evals._arguments import bare_parser
from evals._main import PlainEval, Result, run_plain
from evals._plots import COLOURS, MARKERS, figure
from evals._table import table
from kvboost.runtime.model.rope import Pairing, Rope, rotate, rotated
from services.progress import bar

KV_HEADS, GROUP, DIM = 3, 3, 64
ROPE = Rope(tuple((1e5 ** (-torch.arange(0, DIM, 2).double() / DIM)).tolist()), Pairing.HALF)
_COLUMNS = ("tokens", "segment_tokens", "queries", "slab_s", "place_s", "segments_s", "ratio")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: a query ``[1, heads, Q, dim]``, chunks of K/V ``[kv_heads, T, dim]`` and each chunk's shift."""

    query: Tensor
    chunks: tuple[tuple[Tensor, Tensor], ...]
    shifts: tuple[int, ...]
    slab: tuple[Tensor, Tensor]

    def place(self) -> None:
        """Copy all chunks into the slab, keys rotated."""
        at = 0
        for (keys, values), shift in zip(self.chunks, self.shifts, strict=True):
            end = at + keys.shape[1]
            cos, sin = ROPE.angles(torch.tensor([shift]))
            rotate(keys, cos, sin, ROPE, self.slab[0][0, :, at:end])
            self.slab[1][0, :, at:end] = values
            at = end

    def over_slab(self) -> Tensor:
        """Attend to the slab."""
        return scaled_dot_product_attention(self.query, *self.slab, enable_gqa=True)

    def in_place(self) -> Tensor:
        """Attend to every chunk where it lies, and merge."""
        rows = self.query.shape[2]
        total, weight, highest = None, None, None
        for (keys, values), shift in zip(self.chunks, self.shifts, strict=True):
            cos, sin = ROPE.angles(torch.tensor([-shift]))
            turned = rotated(self.query, cos, sin, ROPE).view(1, KV_HEADS, GROUP * rows, DIM)
            part, scores = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(turned, keys[None], values[None])
            if total is None or weight is None or highest is None:
                total, weight, highest = part, torch.ones_like(scores), scores
                continue
            top = torch.maximum(highest, scores)
            old, new = (highest - top).exp(), (scores - top).exp()
            total = total * old[..., None] + part * new[..., None]
            weight, highest = weight * old + new, top
        if total is None or weight is None:
            raise ValueError("a layer without chunks has nothing to attend to")
        return (total / weight[..., None]).view(1, KV_HEADS * GROUP, rows, DIM)


def make_layer(tokens: int, segment_tokens: int, queries: int, seed: int) -> Layer:
    """Draw a layer whose chunks all move."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [segment_tokens] * (tokens // segment_tokens)
    drawn = [torch.randn(2, KV_HEADS, size, DIM, generator=generator) for size in sizes]
    query = torch.randn(1, KV_HEADS * GROUP, queries, DIM, generator=generator)
    slab = torch.zeros(2, 1, KV_HEADS, sum(sizes), DIM)
    shifts = tuple(random.Random(seed).choices(range(1, tokens), k=len(sizes)))
    return Layer(query, tuple((each[0], each[1]) for each in drawn), shifts, (slab[0], slab[1]))


def measure(args: argparse.Namespace) -> Result:
    """Time both ways for every size, in turns."""
    tokens = args.tokens or (2048 if args.quick else 8192)
    cells = [(size, queries) for size in (32, 64, 256, 1024) for queries in (1, 40, 400)]
    rows = []
    for size, queries in bar(cells, "cells", total=len(cells), unit="cell"):
        layer = make_layer(tokens, size, queries, args.seed)
        taken = _times({"slab_s": layer.over_slab, "place_s": layer.place, "segments_s": layer.in_place}, args.quick)
        ratio = taken["segments_s"] / (taken["slab_s"] + taken["place_s"])
        rows.append({"tokens": tokens, "segment_tokens": size, "queries": queries, **taken, "ratio": ratio})
    return {"rows": rows}


@torch.inference_mode()
def _times(ways: dict[str, Callable[[], object]], quick: bool) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5 if quick else 15):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - start)
    return {name: median(each) for name, each in taken.items()}


def _draw(result: Result, path: Path) -> None:
    with figure(path, "One layer's attention: chunks in place over slab, copy and rotation included") as (axis,):
        for i, queries in enumerate(sorted({row["queries"] for row in result["rows"]})):
            own = [row for row in result["rows"] if row["queries"] == queries]
            x, y = [row["segment_tokens"] for row in own], [row["ratio"] for row in own]
            axis.plot(x, y, color=COLOURS[i], marker=MARKERS[i], label=f"{queries} new")
        axis.axhline(1.0, color="#555555", linewidth=1.0)
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0.0)
        axis.set_xlabel("tokens a chunk")
        axis.set_ylabel("time in place over time by slab")
        axis.legend()


def _table(result: Result) -> str:
    return table(result["rows"], _COLUMNS)


def _parser() -> argparse.ArgumentParser:
    made = bare_parser("segments", (__doc__ or "").partition("\n")[0])
    made.add_argument("--tokens", type=int, metavar="N", help="cached tokens (default: 8192, 2048 with --quick)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    return run_plain(PlainEval("segments", _parser(), measure, _table, _draw), argv)


if __name__ == "__main__":
    sys.exit(main())
