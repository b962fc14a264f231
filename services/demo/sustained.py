"""Documents met again and again in other orders: does the cache keep lending, and does it stay small?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvboost.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WINDOW = 20
_SYSTEM = "Answer the question from the chapters of the language reference below, in one sentence."
_PER_REQUEST = (3, 5)

Show = Callable[[Iterable[str]], Iterable[str]]
"""Passes prompts through and may draw a progress bar."""


@dataclass(frozen=True, slots=True)
class Sustained:
    """What many re-ordered requests reused.

    Attributes
    ----------
    requests, documents
        How many there were.
    budget_bytes
        Twice the K/V of all documents.
    stored_bytes_max
        The most that the cache held after a request.
    warm_from
        First request (from 0) before which every document had been seen.
    window
        Requests averaged at each end: 20, or half of the warm ones if there are fewer than 40.
    first_share, last_share
        Reused prompt tokens per prompt token over the first and last ``window`` warm requests.
    """

    requests: int
    documents: int
    budget_bytes: int
    stored_bytes_max: int
    warm_from: int
    window: int
    first_share: float
    last_share: float

    @property
    def ratio(self) -> float:
        """Share of the last requests over that of the first."""
        return self.last_share / self.first_share if self.first_share else 0.0


def sustained(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    documents: Sequence[str],
    *,
    requests: int = 100,
    seed: int = 0,
    show: Show = iter,
) -> Sustained:
    """Serve prompts of 3 to 5 documents in random order with a cache of twice the documents' K/V.

    The model is boosted for the time of the call, with an in-process cache, no embedder, and the default policy
    without audits: those may raise the recompute ratio, and this is about what the cache holds.

    Raises
    ------
    InputError
        If there are too few requests to meet every document and compare two ends.
    """
    from kvboost import LocalCache, ReusePolicy, boost, engine_of, unboost
    from kvboost.config import Config
    from kvboost.runtime.model.support import examine

    chosen = _choices(len(documents), requests, seed)
    warm_from = _warm_from(chosen, len(documents))
    window = min(WINDOW, (requests - warm_from) // 2)
    if window < 1:
        raise InputError(f"{requests} requests over {len(documents)} documents leave none to compare; ask for more")
    tokens = sum(len(tokenizer(f"{document}\n\n")["input_ids"]) for document in documents)
    budget_bytes = 2 * tokens * examine(model).layout.token_bytes
    shares, sizes = [], []
    cache = LocalCache(max_bytes=budget_bytes)
    boost(model, tokenizer, cache, ReusePolicy(audit_rate=0.0), config=Config())
    try:
        for prompt in show([_prompt(i, [documents[d] for d in picked]) for i, picked in enumerate(chosen)]):
            inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
            model.generate(**inputs, max_new_tokens=1, do_sample=False)
            shares.append(model.last_reuse.reused_tokens / model.last_reuse.prompt_tokens)
            engine_of(model).writer.flush()
            sizes.append(cache.stats().stored_bytes)
    finally:
        unboost(model)
        cache.close()
    warm = shares[warm_from:]
    first, last = sum(warm[:window]) / window, sum(warm[-window:]) / window
    return Sustained(requests, len(documents), budget_bytes, max(sizes), warm_from, window, first, last)


def _choices(documents: int, requests: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.sample(range(documents), rng.randint(*_PER_REQUEST)) for _ in range(requests)]


def _warm_from(chosen: Sequence[Sequence[int]], documents: int) -> int:
    seen: set[int] = set()
    for number, picked in enumerate(chosen):
        if len(seen) == documents:
            return number
        seen.update(picked)
    return len(chosen)


def _prompt(number: int, documents: Sequence[str]) -> str:
    question = f"Question {number + 1}: what do the {len(documents)} chapters above have in common?"
    return "\n\n".join([_SYSTEM, *documents, question])
