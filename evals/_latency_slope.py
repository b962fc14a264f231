"""How the time to first token grows with the reused tokens while the new ones stay the same."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from evals._clocks import Memcpy, Plain, Resident, as_batch
from evals._corpus import Corpus
from evals._served import Served
from kvboost.policy import ReusePolicy
from kvboost.runtime.model.rope import rotate

NEW_TOKENS = 32
_HEAD = "A note before the text that follows: read it twice.\n\n"


def measure_slope(
    served: Served,
    plain: Plain,
    tokenizer: PreTrainedTokenizerBase,
    sizes: Sequence[int],
    policy: ReusePolicy,
    repetitions: int,
    rng: random.Random,
) -> dict[str, Any]:
    """Reuse a text of each of ``sizes`` tokens behind a new line, so that all of it moves, before 32 new tokens.

    Nothing is repaired: what is left is look-up, hand-over, rotation and the pass over the new tokens.
    """
    text, tail = _ids(tokenizer, sizes)
    served.forget()
    served.store(text[: max(sizes)])
    prompts = {size: [*tokenizer(_HEAD)["input_ids"], *text[:size], *tail] for size in sizes}
    rules = replace(policy, repair="none")
    residents = _residents(plain, prompts)
    copy = _Copy(served, max(sizes))
    reused = {size: served.ask("in_process", ids, rules).report.reused_tokens for size, ids in prompts.items()}
    taken: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(repetitions):
        for size in rng.sample(list(sizes), len(sizes)):
            ids = prompts[size]
            taken["ttft_s"][size].append(served.ask("in_process", ids, rules).report.ttft_s)
            taken["resident_ttft_s"][size].append(residents[size].ttft(len(ids) - reused[size]))
            taken["memcpy_s"][size].append(copy.memcpy_s(reused[size]))
            taken["rotation_s"][size].append(copy.rotation_s(reused[size]))
    points = [
        {"reused_tokens": reused[size], **{name: median(by_size[size]) for name, by_size in taken.items()}}
        for size in sizes
    ]
    return {"new_tokens": NEW_TOKENS, "points": points, **_fits(points)}


def _fits(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return seconds per 1,000 reused tokens, and how much of the variance a straight line explains."""
    tokens = np.array([point["reused_tokens"] for point in points], dtype=float)
    slopes = {}
    straight = 1.0
    for name in ("ttft_s", "resident_ttft_s", "memcpy_s", "rotation_s"):
        seconds = np.array([point[name] for point in points])
        slope, start = np.polyfit(tokens, seconds, 1)
        slopes[name] = float(slope * 1000)
        if name == "ttft_s" and seconds.var() > 0:
            straight = 1.0 - float((seconds - start - slope * tokens).var() / seconds.var())
    moving = slopes["memcpy_s"] + slopes["rotation_s"]
    # Over short texts all of it can be noise.
    sound = moving > 0.0 and slopes["ttft_s"] > 0.0
    return {
        "seconds_per_1000_tokens": slopes,
        "r_squared": straight,
        "ratio_to_memcpy_and_rotation": slopes["ttft_s"] / moving if sound else None,
        # The new tokens attend to all reused ones, also where these were resident: no cache can spare that.
        "ratio_without_attention": (slopes["ttft_s"] - slopes["resident_ttft_s"]) / moving if sound else None,
    }


def _ids(tokenizer: PreTrainedTokenizerBase, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    corpus = Corpus(tokenizer, 1)
    text: list[int] = tokenizer(corpus.take(max(sizes) + 8), verbose=False)["input_ids"]
    tail: list[int] = tokenizer(corpus.take(NEW_TOKENS + 8), verbose=False)["input_ids"]
    return text, tail[:NEW_TOKENS]


def _residents(plain: Plain, prompts: dict[int, list[int]]) -> dict[int, Resident]:
    made = {}
    for size, prompt in prompts.items():
        ids = as_batch(prompt, plain.model.device)
        made[size] = Resident(plain, ids, plain.ttft(ids)[1])
    return made


class _Copy:
    """Copies, and rotates, the K/V of a number of tokens."""

    def __init__(self, served: Served, most_tokens: int) -> None:
        support = served.engines["in_process"].support
        self._layout = support.layout
        self._rope = next(rope for rope in support.ropes if rope is not None)
        self._memcpy = Memcpy(support.layout.token_bytes * most_tokens * 2)
        shape = (self._layout.num_layers, self._layout.num_kv_heads, most_tokens, self._layout.key_dim)
        self._keys = torch.ones(shape, dtype=getattr(torch, self._layout.dtype))
        self._out = torch.zeros_like(self._keys)

    def memcpy_s(self, tokens: int) -> float:
        return self._memcpy.seconds(self._layout.token_bytes * tokens)

    def rotation_s(self, tokens: int) -> float:
        start = time.perf_counter()
        cos, sin = self._rope.angles(torch.tensor([1]))
        rotate(self._keys[:, :, :tokens], cos, sin, self._rope, self._out[:, :, :tokens])
        return time.perf_counter() - start
