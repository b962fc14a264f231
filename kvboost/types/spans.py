"""Where a token's K/V came from, how they came, and spans of positions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvboost.errors import InputError


class Tier(StrEnum):
    """How a token's K/V came about.

    ``PREFIX``: same tokens, same history, lossless. ``EXACT``: same tokens, other history or position.
    ``CONTINUED``: what an earlier request was answered from, for its own continuation or repetition; as lossy as it was
    then. ``SIMILAR``: nominated by embedding, verified by token diff. ``SUBSTITUTE``: the donor's wording stands in.
    ``COMPUTED``: by this request's own forward pass.
    """

    PREFIX = "prefix"
    CONTINUED = "continued"
    EXACT = "exact"
    SIMILAR = "similar"
    SUBSTITUTE = "substitute"
    COMPUTED = "computed"


class Handover(StrEnum):
    """How fetched K/V came here: they were here, were mapped, or were sent. From the quickest to the slowest."""

    IN_PROCESS = "in process"
    SHARED_MEMORY = "shared memory"
    FRAMES = "frames"

    @staticmethod
    def slowest(ways: Iterable[Handover | None]) -> Handover | None:
        """Return the slowest of ``ways``; None if there is none."""
        return max((way for way in ways if way is not None), key=list(Handover).index, default=None)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Half-open range ``[start, end)`` of token positions; never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise InputError(f"span [{self.start}, {self.end}) must have 0 <= start < end")

    def __len__(self) -> int:
        return self.end - self.start

    def shifted(self, by: int) -> Span:
        """Return the span moved by ``by`` positions."""
        return Span(self.start + by, self.end + by)
