"""What an examination comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    """``NOTE``: could be better, or is off; ``WARNING``: works, but not as it should; ``BROKEN``: does not work."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    area
        Heading that it stands under.
    text
        What was found, without a full stop.
    remedy
        What to do about it; empty if nothing is to be done.
    """

    area: str
    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Examination:
    """Findings of one area, and its figures by name (with their unit) for scripts."""

    findings: tuple[Finding, ...]
    figures: Mapping[str, object] = field(default_factory=dict)


class Notes:
    """Findings of one area, as they are made."""

    def __init__(self, area: str) -> None:
        self._area = area
        self._findings: list[Finding] = []
        self.figures: dict[str, object] = {}

    def ok(self, text: str) -> None:
        """Note what is as it should be."""
        self._findings.append(Finding(self._area, Level.OK, text))

    def note(self, text: str, remedy: str = "") -> None:
        """Note what is off, or could be better."""
        self._findings.append(Finding(self._area, Level.NOTE, text, remedy))

    def warn(self, text: str, remedy: str) -> None:
        """Note what works, but not as it should."""
        self._findings.append(Finding(self._area, Level.WARNING, text, remedy))

    def broken(self, text: str, remedy: str) -> None:
        """Note what does not work."""
        self._findings.append(Finding(self._area, Level.BROKEN, text, remedy))

    def done(self) -> Examination:
        """Return what was noted."""
        return Examination(tuple(self._findings), self.figures)
