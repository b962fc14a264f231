"""Findings for people and for scripts."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby

from .finding import Examination, Finding, Level

_WIDTH = 100
_MARKS = {Level.OK: "ok", Level.NOTE: "note", Level.WARNING: "WARNING", Level.BROKEN: "BROKEN"}
_COLUMN = 2 + max(len(mark) for mark in _MARKS.values()) + 2


def as_text(examinations: Sequence[Examination]) -> str:
    """Return one line a finding, wrapped, under the headings of their areas; a summary at the end."""
    findings = [finding for one in examinations for finding in one.findings]
    lines: list[str] = []
    for area, group in groupby(findings, key=lambda finding: finding.area):
        lines += [area, *(line for finding in group for line in _lines(finding)), ""]
    return "\n".join([*lines, _summary(findings)])


def as_json(examinations: Sequence[Examination]) -> str:
    """Return ``{"healthy", "findings": [...], "figures": {area: {...}}}``."""
    findings = [finding for one in examinations for finding in one.findings]
    figures = {one.findings[0].area: dict(one.figures) for one in examinations if one.findings}
    shown = {"healthy": not is_broken(examinations), "findings": [asdict(f) for f in findings], "figures": figures}
    return json.dumps(shown, indent=2)


def is_broken(examinations: Sequence[Examination]) -> bool:
    """Return whether anything does not work."""
    return any(finding.level is Level.BROKEN for one in examinations for finding in one.findings)


def _lines(finding: Finding) -> Iterator[str]:
    indent = " " * _COLUMN
    yield _wrapped(finding.text, f"  {_MARKS[finding.level]}".ljust(_COLUMN), indent)
    if finding.remedy:
        yield _wrapped(f"-> {finding.remedy}", indent, indent + "   ")


def _wrapped(text: str, first: str, others: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )


def _summary(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    if not counts[Level.BROKEN] and not counts[Level.WARNING]:
        return "nothing is broken"
    return f"{counts[Level.BROKEN]} broken, {counts[Level.WARNING]} warnings"
