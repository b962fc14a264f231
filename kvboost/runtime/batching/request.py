"""What is asked of a batch, and who is told of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from kvboost.policy import ReusePolicy
from kvboost.runtime.serve.answer import GeneratedAnswer
from kvboost.runtime.serve.logprobs import OnLogprobs
from kvboost.sampling import Sampling
from kvboost.types import PutReceipt


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One prompt to be answered.

    Attributes
    ----------
    token_ids
        ``N`` tokens, at least one.
    max_new_tokens
        Answer tokens at most; 0 only computes the prompt's K/V and stores them.
    arrived_s
        ``perf_counter()`` when the request arrived: the time to first token counts from there.
    stages_s
        Seconds spent between arrival and submission, by stage.
    skip_cache
        Compute everything; look nothing up and store nothing.
    policy
        Instead of the model's own, and without the controller.
    namespace
        Key of the namespace that new chunks go to; empty for the model's own.
    on_logprobs, top_logprobs
        Who is told the log-probabilities of each token, and of how many likeliest ones; None computes none.
    """

    token_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    arrived_s: float
    stages_s: Mapping[str, float] = field(default_factory=dict)
    skip_cache: bool = False
    policy: ReusePolicy | None = None
    namespace: str = ""
    on_logprobs: OnLogprobs | None = None
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A whole answer.

    Attributes
    ----------
    stored
        What becomes of the new chunks, in the background; None where nothing is stored, or the plain path of
        one request stores them.
    """

    answer: GeneratedAnswer
    stored: Future[PutReceipt] | None = None


@dataclass(frozen=True, slots=True)
class BatchState:
    """What a batch is doing.

    Attributes
    ----------
    obstacle
        Why answers are given one after the other, or an empty string.
    """

    max_batch: int
    max_queue: int
    running: int
    waiting: int
    obstacle: str


class Listener(Protocol):
    """Who asked. Called on the batch's thread, so every method must return at once."""

    def gone(self) -> bool:
        """Return whether nobody waits for the answer any more; the row then leaves the batch."""
        ...

    def on_token(self, token_id: int) -> bool:
        """Take an answer token; return True to end the answer."""
        ...

    def on_end(self, ended: Ended) -> None:
        """Take the end of the answer; nothing is called after it."""
        ...

    def on_error(self, error: BaseException) -> None:
        """Take the error that ends the answer; nothing is called after it."""
        ...
