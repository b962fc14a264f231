"""Clocks outside the measured system: plain transformers with one, and one that hears each token."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return a second module over the same weights, so that one can be boosted and the other stay as it is."""
    shared: dict[int, Any] = {id(weight): weight for weight in model.parameters()}
    return copy.deepcopy(model, shared)


def as_batch(token_ids: Sequence[int], device: torch.device | str) -> Tensor:
    """Return one prompt as ``[1, N]``."""
    return torch.tensor([list(token_ids)], device=device)


def crop(cache: DynamicCache, tokens: int) -> None:
    """Keep the first ``tokens`` of the cache, as views: nothing is copied."""
    surplus = cache.get_seq_length() - tokens
    if surplus > 0:
        cache.crop(-surplus)


@dataclass(slots=True)
class TokenClock:
    """A streamer of ``generate()`` that keeps only when each new token came."""

    times_s: list[float] = field(default_factory=list)
    _prompt_seen: bool = False

    def put(self, value: Tensor) -> None:
        """Take the prompt, then token after token."""
        if self._prompt_seen:
            self.times_s.append(time.perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is left to do."""


class Plain:
    """Plain transformers; ``model`` must not be boosted.

    The time to first token ends where the first forward pass has its logits, as a report's ``ttft_s`` does.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._first_s: float | None = None
        model.register_forward_hook(self._after)

    def _reset(self) -> None:
        self._first_s = None

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._first_s is None:
            self._first_s = time.perf_counter()

    @torch.no_grad()
    def ttft(self, ids: Tensor, cache: DynamicCache | None = None) -> tuple[float, DynamicCache]:
        """Return the time to first token and the cache, which then holds the prompt.

        Parameters
        ----------
        ids
            ``[1, N]``.
        cache
            Holds at most ``N - 1`` leading tokens; extended in place.
        """
        given = {} if cache is None else {"cache": cache}
        mask = torch.ones_like(ids)
        self._reset()
        start = time.perf_counter()
        result = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=1, do_sample=False, return_dict_in_generate=True, **given
        )
        assert self._first_s is not None
        return self._first_s - start, result.cache


class Resident:
    """The limit: a prompt's K/V lie in transformers' own cache in this process, and only its last tokens are computed.

    Parameters
    ----------
    cache
        Holds all of ``ids``; cropped, and filled again by each run.
    """

    def __init__(self, plain: Plain, ids: Tensor, cache: DynamicCache) -> None:
        self._plain = plain
        self._ids = ids
        self._cache = cache

    def ttft(self, computed: int) -> float:
        """Return the time to first token with the last ``computed`` tokens left to compute."""
        crop(self._cache, self._ids.shape[1] - computed)
        seconds, self._cache = self._plain.ttft(self._ids, self._cache)
        return seconds

    def ttft_copied(self, computed: int) -> float:
        """Return it for who keeps the cache for later requests too: copied and cropped first, on the clock."""
        start = time.perf_counter()
        cache = copy.deepcopy(self._cache)
        crop(cache, self._ids.shape[1] - computed)
        before_s = time.perf_counter() - start
        return before_s + self._plain.ttft(self._ids, cache)[0]


class Memcpy:
    """Copies of a number of bytes within this process, into memory that was written to before."""

    def __init__(self, most_bytes: int) -> None:
        self._source: npt.NDArray[np.uint8] = np.ones(most_bytes, dtype=np.uint8)
        self._target: npt.NDArray[np.uint8] = np.full(most_bytes, 2, dtype=np.uint8)

    def seconds(self, nbytes: int) -> float:
        """Return how long ``nbytes`` take."""
        start = time.perf_counter()
        np.copyto(self._target[:nbytes], self._source[:nbytes])
        return time.perf_counter() - start
