"""The latest requests, for the page. Without their texts, unless the gateway was told to show prompts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvboost.reuse import ReuseReport

from ..reuse_map import ReuseMap, map_tokens

KEPT = 30


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request.

    Attributes
    ----------
    at_s
        When it arrived, in seconds since 1970.
    duration_s
        From request to last token.
    token_texts
        Text of every prompt token; empty unless prompts are shown.
    """

    id: str
    at_s: float
    model: str
    runtime: str
    new_tokens: int
    duration_s: float
    report: ReuseReport
    token_texts: tuple[str, ...] = ()

    def page(self) -> ReuseMap:
        """Return the reuse map of the prompt."""
        report = self.report
        facts = (
            f"{self.model}: {report.reused_tokens} of {report.prompt_tokens} tokens reused",
            f"time to first token {report.ttft_s:.3f} s, {self.new_tokens} answer tokens in {self.duration_s:.3f} s",
        )
        return ReuseMap(self.id, map_tokens(self.token_texts, report.spans), facts)


class Recent:
    """The latest requests, the newest first. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served: deque[Served] = deque(maxlen=KEPT)

    def add(self, served: Served) -> None:
        """Remember a request, and forget the oldest beyond 30."""
        with self._lock:
            self._served.appendleft(served)

    def all(self) -> Sequence[Served]:
        """Return them."""
        with self._lock:
            return tuple(self._served)

    def find(self, id: str) -> Served | None:
        """Return the request with this id, if it is remembered."""
        return next((served for served in self.all() if served.id == id), None)
