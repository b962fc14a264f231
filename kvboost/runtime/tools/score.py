"""The loss of reuse, measured: full prefill's own greedy answer, teacher-forced through both.

KL(full || reuse) and equality of the top token are averaged over the answer's positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvboost.policy import ReusePolicy
from kvboost.runtime.audit.divergence import kl_divergence
from kvboost.runtime.prepare.prepared import Prepared
from kvboost.runtime.serve.engine import Engine
from kvboost.runtime.tools.explain import prepare


@dataclass(frozen=True, slots=True)
class FullPrefill:
    """Plain ``generate()``, greedy.

    Attributes
    ----------
    answer_ids
        What it answered, ``A`` tokens.
    logits
        ``[A, vocab]`` fp32, before any processing.
    ttft_s
        From the call to the first token's logits.
    """

    answer_ids: tuple[int, ...]
    logits: Tensor
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Loss:
    """What reuse lost against full prefill.

    Attributes
    ----------
    kl_mean, kl_first
        KL(full || reuse) in nats, over the answer and at its first token.
    top1_agreement
        Share of the answer's positions at which both put the same token first.
    positions
        How many positions that is.
    """

    kl_mean: float
    kl_first: float
    top1_agreement: float
    positions: int


@torch.no_grad()
def full_prefill(engine: Engine, token_ids: Sequence[int], max_new_tokens: int) -> FullPrefill:
    """Answer greedily with the plain model."""
    ids = torch.tensor([list(token_ids)], device=engine.model.device)
    result, ttft_s = engine.run_plain(
        ids,
        attention_mask=torch.ones_like(ids),  # or a pad token in the prompt would be taken for padding
        max_new_tokens=max_new_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    answer = result.sequences[0, len(token_ids) :].tolist()
    return FullPrefill(tuple(answer), torch.cat([step.float() for step in result.logits]), ttft_s)


@torch.no_grad()
def forced_logits(
    engine: Engine, token_ids: Sequence[int], answer_ids: Sequence[int], policy: ReusePolicy | None = None
) -> tuple[Tensor, Prepared]:
    """Return the logits ``[A, vocab]`` with which a reusing prefill would meet the given answer. Stores nothing."""
    prepared = prepare(engine, token_ids, len(answer_ids), policy)
    last = len(token_ids) - 1
    prepared.splice.run(engine.model, last)
    ids = torch.tensor([[token_ids[last], *answer_ids[:-1]]], device=engine.model.device)
    positions = torch.arange(last, last + ids.shape[1], device=ids.device)[None]
    output = engine.model(input_ids=ids, position_ids=positions, cache=prepared.splice.cache, use_cache=True)
    return output.logits[0].float(), prepared


def loss(full: Tensor, reuse: Tensor) -> Loss:
    """Compare logits ``[A, vocab]`` of full prefill and of reuse over the same answer."""
    kl = kl_divergence(full, reuse)
    same = (full.argmax(-1) == reuse.argmax(-1)).float()
    return Loss(float(kl.mean()), float(kl[0]), float(same.mean()), len(kl))
