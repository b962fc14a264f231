"""What the demo prints, in 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from kvboost.types import Tier

from ..reuse_map.ansi import printable
from .outcome import Outcome
from .sustained import Sustained

_WIDTH = 100
_INDENT = 12


def outcome_lines(outcome: Outcome) -> str:
    """Return one request: tokens, time, loss, and both answers side by side."""
    report, score = outcome.answer.report, outcome.score
    agreement = f"same top token at {score.top1_agreement:.0%} of {score.positions} answer tokens"
    rows = [
        ("tokens", _tokens(outcome)),
        ("TTFT", f"{_seconds(report.ttft_s)}; plain Hugging Face {_seconds(score.full_ttft_s)}: {_times(outcome)}"),
        ("loss", f"mean KL {score.kl_mean:.4f}, {agreement}"),
        ("question", printable(outcome.request.question)),
        ("KVBoost", _on_one_line(outcome.answer.text)),
        ("plain", _plain_answer(outcome)),
    ]
    if outcome.request.expected is not None:
        rows.append(("number", _number(outcome)))
    if report.fallback is not None:
        rows.append(("fallback", printable(report.fallback)))
    return "\n".join([f"\n{outcome.request.name}: {outcome.request.title}", *(_row(*row) for row in rows)])


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the four requests as a table."""
    head = f"{'request':<11}{'context':>9}{'reused':>9}{'':>8}{'recompute':>11}{'TTFT':>10}{'plain':>10}{'ratio':>8}"
    lines = [f"\n{head}{'mean KL':>10}{'top-1':>8}"]
    for one in outcomes:
        report, score = one.answer.report, one.score
        lines.append(
            f"{one.request.name:<11}{one.context_tokens:>9,}{one.reused_tokens:>9,}{one.reuse_share:>8.1%}"
            f"{report.recompute_ratio:>11.3f}{_seconds(report.ttft_s):>10}{_seconds(score.full_ttft_s):>10}"
            f"{one.ttft_ratio:>8.2f}{score.kl_mean:>10.4f}{score.top1_agreement:>8.0%}"
        )
    return "\n".join(lines)


def sustained_lines(result: Sustained) -> str:
    """Return the sustained run in a sentence or two."""
    stored, budget = (size / 1024**2 for size in (result.stored_bytes_max, result.budget_bytes))
    text = (
        f"{result.requests} requests over {result.documents} short documents in random orders: the last "
        f"{result.window} reused {result.last_share:.1%} of their tokens, the first {result.window} warm ones "
        f"{result.first_share:.1%} (ratio {result.ratio:.2f}). The cache held {stored:.0f} MiB "
        f"at most, of {budget:.0f} MiB allowed."
    )
    return "\nsustained\n" + textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def paths_lines(paths: Sequence[Path]) -> str:
    """Return where the maps are."""
    return "\nreuse maps\n" + "\n".join(f"  {path}" for path in paths)


def _tokens(outcome: Outcome) -> str:
    report = outcome.answer.report
    parts = [f"{n:,} {tier}" for tier, n in report.tokens_by_tier.items() if n and tier is not Tier.COMPUTED]
    computed = f"{report.tokens_by_tier[Tier.COMPUTED]:,} computed"
    if report.recomputed_tokens:
        computed += f", {report.recomputed_tokens:,} of them repaired (recompute ratio {report.recompute_ratio:.3f})"
    return f"{report.prompt_tokens:,}: " + ", ".join([*parts, computed])


def _plain_answer(outcome: Outcome) -> str:
    same = outcome.answer.text == outcome.score.full_answer
    return "the same" if same else _on_one_line(outcome.score.full_answer)


def _number(outcome: Outcome) -> str:
    request, text = outcome.request, outcome.answer.text
    if request.expected and request.expected in text:
        return f"{request.expected} is in the answer"
    stale = f"; {request.old}, the old one, is" if request.old and request.old in text else ""
    return f"{request.expected} is NOT in the answer{stale}"


def _on_one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _row(name: str, text: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=f"  {name:<{_INDENT - 2}}", subsequent_indent=" " * _INDENT, break_on_hyphens=False
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _times(outcome: Outcome) -> str:
    return f"{outcome.ttft_ratio:.2f} of it"
