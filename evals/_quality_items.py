"""Measuring one prompt under many policies, and the noise that full prefill has by itself."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from transformers import PreTrainedModel

from evals._bench import Bench, Measurement, Session
from evals._rows import Sample
from evals._tasks import Item
from evals._text_metrics import scores
from evals._variants import Variant
from kvboost.policy import ReusePolicy
from kvboost.runtime.tools.score import FullPrefill, Loss, loss
from kvboost.types import Tier

LOADED = "full, K/V from the cache"


@dataclass(frozen=True, slots=True)
class Measured:
    """One prompt.

    Attributes
    ----------
    samples
        In the order of the variants.
    loaded
        Full prefill of the very same prompt taken from the cache: what should be no loss at all; None if not asked for.
    """

    full: FullPrefill
    full_ttft_s: float
    full_scores: dict[str, float]
    samples: tuple[Sample, ...]
    loaded: Sample | None


def measure_item(
    bench: Bench, item: Item, chosen: Sequence[Variant], answer_tokens: int, rng: random.Random, noise: bool
) -> Measured:
    """Fill an empty cache with the item's donors, and serve its prompt under every policy in a random order."""
    with bench.session() as session:
        for donor in item.donors:
            session.store(donor)
        full = session.full(item.prompt, answer_tokens)
        order = rng.sample(range(len(chosen)), len(chosen))
        measured: dict[int, Measurement] = {}
        full_ttfts_s = [full.ttft_s]
        for count, at in enumerate(order, 1):
            measured[at] = session.measure(item.prompt, full, chosen[at].policy)
            if 2 * count == len(order) // 2 * 2:
                full_ttfts_s.append(session.full(item.prompt, 1).ttft_s)
        full_ttft_s = mean(full_ttfts_s)
        samples = tuple(
            Sample(measured[i], full_ttft_s, _scores(bench, session, item, full, measured[i], each.policy))
            for i, each in enumerate(chosen)
        )
        own = _score_ids(bench, item, full.answer_ids)
        loaded = Sample(_loaded(session, item, full), full_ttft_s, own) if noise else None
    return Measured(full, full_ttft_s, own, samples, loaded)


def other_precision(model: PreTrainedModel) -> torch.dtype:
    """Return the precision that full prefill is repeated in: bfloat16, or float32 if the model is not in that."""
    return torch.bfloat16 if model.dtype == torch.float32 else torch.float32


def precision_noise(model: PreTrainedModel, items: Sequence[tuple[Item, FullPrefill]]) -> list[Loss]:
    """Return what full prefill in another precision loses against full prefill: no reuse can be asked for less.

    The model must not be boosted.
    """
    other = copy.deepcopy(model).to(other_precision(model))
    return [loss(full.logits, _forced(other, item.prompt, full.answer_ids)) for item, full in items]


@torch.no_grad()
def _forced(model: PreTrainedModel, token_ids: Sequence[int], answer_ids: Sequence[int]) -> torch.Tensor:
    ids = torch.tensor([[*token_ids, *answer_ids[:-1]]], device=model.device)
    logits: torch.Tensor = model(input_ids=ids, logits_to_keep=len(answer_ids)).logits
    return logits[0].float()


def _loaded(session: Session, item: Item, full: FullPrefill) -> Measurement:
    """Store the prompt's own K/V, computed without any reuse, and serve it from them."""
    session.store(item.prompt, ReusePolicy(tiers=()))
    return session.measure(item.prompt, full, ReusePolicy(tiers=(Tier.PREFIX,)))


def _scores(
    bench: Bench, session: Session, item: Item, full: FullPrefill, measured: Measurement, policy: ReusePolicy
) -> dict[str, float]:
    if not item.answers:
        return {}
    # Where no token differs, greedy decoding gives full prefill's answer again.
    same = measured.first_divergence is None
    ids = full.answer_ids if same else session.answer(item.prompt, len(full.answer_ids), policy)[0]
    return _score_ids(bench, item, ids)


def _score_ids(bench: Bench, item: Item, ids: Sequence[int]) -> dict[str, float]:
    if not item.answers:
        return {}
    return scores(bench.tokenizer.decode(list(ids), skip_special_tokens=True), item.answers)
