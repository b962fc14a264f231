"""The full prefill in the shadow of a request, compared with what the request itself saw."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvboost.runtime.audit.divergence import kl_divergence

ANSWER_TOKENS = 64
"""Answer tokens that are compared at most: logits of a whole vocabulary are kept for each."""


@dataclass(slots=True)
class Watch:
    """What a request saw, taken from its own forward passes while it ran.

    Attributes
    ----------
    first
        ``[rows, vocab]``, the logits of the first answer token.
    tops
        ``[rows]`` for each answer token, the token with the highest logit.
    """

    first: Tensor | None = None
    tops: list[Tensor] = field(default_factory=list)

    def see(self, logits: Tensor) -> None:
        """Take down the last position of one forward pass, ``logits`` ``[rows, Q, vocab]``."""
        last = logits[:, -1].detach()
        if self.first is None:
            self.first = last.clone()
        if len(self.tops) < ANSWER_TOKENS:
            self.tops.append(last.argmax(-1))


@dataclass(frozen=True, slots=True)
class Seen:
    """One row of a request as it was served.

    Attributes
    ----------
    token_ids
        The prompt, ``N`` tokens.
    answer_ids
        The tokens that were answered, ``A`` of them; empty where rows do not follow one answer (beams).
    first
        ``[vocab]``, the logits of the first answer token.
    tops
        ``[A]``, the token with the highest logit at each answer position.
    """

    token_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    first: Tensor
    tops: Tensor

    @staticmethod
    def of(watch: Watch, row: int, token_ids: Sequence[int], prompt_tokens: int) -> Seen:
        """Return row ``row`` of a watch over ``token_ids``, prompt and answer.

        Raises
        ------
        ValueError
            If the watch saw no forward pass.
        """
        if watch.first is None:
            raise ValueError("no forward pass was watched; arm the watch before generate() runs")
        answer = tuple(token_ids[prompt_tokens:])[: len(watch.tops)]
        tops = torch.stack([step[row] for step in watch.tops])[: len(answer)]
        return Seen(tuple(token_ids[:prompt_tokens]), answer, watch.first[row], tops)


@dataclass(frozen=True, slots=True)
class Difference:
    """Full prefill against reuse.

    Attributes
    ----------
    kl_first
        KL(full || reuse) of the first answer token in nats; infinite if the reuse's logits are not finite.
    top1_first
        Whether both put the same token first there.
    top1_agreement
        Share of the answer's positions at which both put the same token first, full prefill being forced along
        the reuse's answer; None without an answer.
    first_divergence
        The first position of the answer at which they do not; None if there is none.
    answer_tokens
        How many positions that was.
    """

    kl_first: float
    top1_first: bool
    top1_agreement: float | None
    first_divergence: int | None
    answer_tokens: int


@torch.no_grad()
def difference_of(model: PreTrainedModel, seen: Seen) -> Difference:
    """Run the plain model over prompt and answer, without any cache, and compare.

    Raises
    ------
    ValueError
        If the full prefill's own logits give no distribution.
    """
    full = _full_logits(model, seen)
    if not bool(torch.isfinite(full[0].log_softmax(-1).max())):
        raise ValueError("full prefill's own logits are not finite")
    same = full[: len(seen.tops)].argmax(-1) == seen.tops.to(full.device)
    apart = torch.nonzero(~same)
    return Difference(
        kl_first=float(kl_divergence(full[0], seen.first.to(full.device))),
        top1_first=int(full[0].argmax()) == int(seen.first.argmax()),
        top1_agreement=float(same.float().mean()) if len(same) else None,
        first_divergence=int(apart[0]) if len(apart) else None,
        answer_tokens=len(same),
    )


def _full_logits(model: PreTrainedModel, seen: Seen) -> Tensor:
    """Return full prefill's logits at the answer's positions, ``[max(A, 1), vocab]`` fp32."""
    ids = torch.tensor([[*seen.token_ids, *seen.answer_ids[:-1]]], device=model.device)
    count = max(len(seen.answer_ids), 1)
    keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
    logits: Tensor = model(input_ids=ids, use_cache=False, **({"logits_to_keep": count} if keeps else {})).logits
    return logits[0, -count:].float()
