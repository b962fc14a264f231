"""One answer, token by token: sampling settings to arguments of ``generate()``, and a hook on every token."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from kvboost.reuse import ReuseReport, TierSpan
from kvboost.runtime.serve.call import end_tokens
from kvboost.runtime.serve.engine import Engine
from kvboost.sampling import Sampling
from kvboost.types import Span, Tier

# Logits divided by less overflow; the distribution has one token left long before.
_LEAST_TEMPERATURE = 1e-5

OnToken = Callable[[int], bool]
"""Told each answer token as it is chosen; returns True to stop."""


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """What was answered; ``token_ids`` holds the end token too, if there was one."""

    token_ids: tuple[int, ...]
    ended: bool
    report: ReuseReport


def generate_answer(
    engine: Engine,
    token_ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    on_token: OnToken,
    *,
    skip_cache: bool = False,
) -> GeneratedAnswer:
    """Answer a prompt of ``N`` tokens, at least one; with ``skip_cache`` by the plain model."""
    inputs = torch.tensor([list(token_ids)], device=engine.model.device)
    arguments = generation_arguments(engine.model, sampling) | {
        "attention_mask": torch.ones_like(inputs),
        "max_new_tokens": max_new_tokens,
        "stopping_criteria": StoppingCriteriaList([_EachToken(on_token)]),
    }
    with _seeded(sampling.seed, engine.model.device):
        if skip_cache:
            result, ttft_s = engine.run_plain(inputs, **arguments)
            report = _plain_report(len(token_ids), ttft_s)
            engine.counters.add("plain_requests")
        else:
            result, report = engine.generate(inputs, **arguments)
    answer = tuple(result[0, len(token_ids) :].tolist())
    return GeneratedAnswer(answer, bool(answer) and answer[-1] in end_tokens(engine.model), report)


def warm_up(engine: Engine) -> None:
    """Generate a few tokens with the plain model: the first call sets up kernels, threads and memory.

    The cache is not touched: what it measures of real requests, and what it holds, stays theirs.
    """
    ids = torch.full((1, 32), engine.model.get_input_embeddings().num_embeddings - 1, device=engine.model.device)
    engine.run_plain(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)


class _EachToken(StoppingCriteria):
    """Runs after every step of ``generate()``, the first included."""

    def __init__(self, on_token: OnToken) -> None:
        self._on_token = on_token
        self._stop = False

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        if not self._stop:
            self._stop = self._on_token(int(input_ids[0, -1]))
        return torch.full((input_ids.shape[0],), self._stop, dtype=torch.bool, device=input_ids.device)


def generation_arguments(model: PreTrainedModel, sampling: Sampling) -> dict[str, Any]:
    """Return the arguments of ``generate()`` that choose tokens."""
    config = model.generation_config
    arguments: dict[str, Any] = {"num_beams": 1, "num_return_sequences": 1}
    if config.pad_token_id is None:
        # One row needs no padding; naming a token keeps transformers from warning at each call.
        arguments["pad_token_id"] = min(end_tokens(model), default=0)
    if sampling.repetition_penalty is not None:
        arguments["repetition_penalty"] = sampling.repetition_penalty
    draws = sampling.draws
    if draws is None:
        return arguments
    if not draws or (sampling.temperature is not None and sampling.temperature < _LEAST_TEMPERATURE):
        return arguments | {"do_sample": False}
    chosen = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return arguments | {"do_sample": True} | {name: value for name, value in chosen.items() if value is not None}


@contextlib.contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draw from ``seed`` inside, and leave the generators of torch as they were: the next request is not seeded."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _plain_report(prompt_tokens: int, ttft_s: float) -> ReuseReport:
    tiers = {**dict.fromkeys(Tier, 0), Tier.COMPUTED: prompt_tokens}
    spans = (TierSpan(Span(0, prompt_tokens), Tier.COMPUTED),)
    return ReuseReport(prompt_tokens, tiers, ttft_s=ttft_s, spans=spans)
