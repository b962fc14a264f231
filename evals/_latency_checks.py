"""The figures that are asked for, and whether this run met them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

Row = dict[str, Any]
_LEAST_LONG = 7000
_LEAST_SHIFTED = 4000
_MOST_SHIFTED = 4200
_BESIDE = 1.15
_LIMITS = {"in_process": 1.10, "unix": 1.25}


def checks(cells: Sequence[Row], handover: Sequence[Row], slopes: Sequence[Row]) -> list[Row]:
    """Return one row a figure that this run can judge: what, value, what is asked, whether it is met."""
    return [*_limits(cells), *_headlines(cells), *_cold(cells), *_handover(handover), *_slopes(slopes)]


def against_in_process(cells: Sequence[Row]) -> Iterator[Row]:
    """Yield how long a cache service takes beside the cache in this process, for the same prompts under the same load.

    The median over cells: a busy machine makes any single one as slow as it likes.
    """

    def of(cell: Row) -> tuple[object, ...]:
        return cell["tier"], cell["tokens"], cell["new_share"], cell["dtype"]

    own = {of(cell): cell["ttft_s"] for cell in cells if cell["transport"] == "in_process"}
    for transport in dict.fromkeys(cell["transport"] for cell in cells if cell["transport"] != "in_process"):
        ratios = [c["ttft_s"] / own[of(c)] for c in cells if c["transport"] == transport and of(c) in own]
        if ratios:
            what = f"{transport}: TTFT over in process, under the same load (median of {len(ratios)} cells)"
            yield _most(what, median(ratios), _BESIDE)


def _limits(cells: Sequence[Row]) -> Iterator[Row]:
    for transport, bound in _LIMITS.items():
        for tier in dict.fromkeys(cell["tier"] for cell in cells):
            own = [c for c in cells if c["transport"] == transport and c["tier"] == tier and c["ratio_to_resident"]]
            if own:
                worst = max(own, key=lambda cell: cell["ratio_to_resident"])
                met = sum(cell["ratio_to_resident"] <= bound for cell in own)
                where = f"{worst['tokens']} tokens, {worst['new_share']:g} new, {worst['dtype']}"
                what = f"{tier}, {transport}: worst TTFT over resident ({where}; {met} of {len(own)} cells meet it)"
                yield _most(what, worst["ratio_to_resident"], bound)


def _headlines(cells: Sequence[Row]) -> Iterator[Row]:
    for cell in cells:
        where = f"{cell['dtype']}, {cell['transport']}"
        if cell["speedup"] is None:
            continue
        reused = cell["reused_tokens"] / cell["prompt_tokens"]
        if cell["tier"] == "prefix" and cell["tokens"] > _LEAST_LONG and reused >= 0.99 and cell["transport"] == "unix":
            yield _least(f"{cell['tokens']} tokens, {reused:.1%} prefix, {where}: times faster", cell["speedup"], 40.0)
        asked = {0.05: 8.0, 0.15: 3.5}.get(cell["new_share"])
        if cell["tier"] == "shifted" and _LEAST_SHIFTED <= cell["tokens"] <= _MOST_SHIFTED and asked:
            quality = f"KL {cell['kl_mean']:.4f}, top-1 {cell['top1_agreement']:.3f}" if "kl_mean" in cell else "no KL"
            what = f"4 shifted documents, query at {cell['new_share']:g}, {where} ({quality}): times faster"
            yield _least(what, cell["speedup"], asked)


def _cold(cells: Sequence[Row]) -> Iterator[Row]:
    for cell in cells:
        if cell["tier"] == "cold" and cell["ratio_to_baseline"] is not None:
            what = f"cold, {cell['tokens']} tokens, {cell['dtype']}, {cell['transport']}: TTFT over no cache"
            yield _most(what, cell["ratio_to_baseline"], 1.05)


def _handover(rows: Sequence[Row]) -> Iterator[Row]:
    by_path = {row["path"]: row for row in rows}
    if "shared memory" in by_path:
        yield _least("hand-over by shared memory over memcpy", by_path["shared memory"]["ratio_to_memcpy"], 0.8)
    if "tcp frames" in by_path:
        unary = by_path["unary 64 MiB"]["bytes_per_s"]
        yield _least("hand-over by TCP frames over unary calls", by_path["tcp frames"]["bytes_per_s"] / unary, 2.0)


def _slopes(slopes: Sequence[Row]) -> Iterator[Row]:
    for slope in slopes:
        if slope["ratio_to_memcpy_and_rotation"] is None:
            continue
        what = f"slope of TTFT over memcpy + rotation, {slope['dtype']}"
        yield _most(what, slope["ratio_to_memcpy_and_rotation"], 2.0)
        yield _most(f"{what}, less the resident limit's own slope", slope["ratio_without_attention"], 2.0)


def _most(what: str, value: float, bound: float) -> Row:
    return {"what": what, "value": value, "asked": f"<= {bound:g}", "met": value <= bound}


def _least(what: str, value: float, bound: float) -> Row:
    return {"what": what, "value": value, "asked": f">= {bound:g}", "met": value >= bound}
