"""Query repair: recompute what the question attends to.

The question's tokens run once over the re-rotated cache; the context tokens are ranked by the attention that
they receive (mean over heads, question tokens and layers), and the top of the list is recomputed together with
the question. The idea of letting the question choose is that of ProphetKV.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvboost.runtime.attention import AttentionRecorder, recording
from kvboost.runtime.masks import position_masks
from kvboost.runtime.plan import Plan
from kvboost.runtime.repair.base import RepairContext, Selection
from kvboost.runtime.slab import SplicePass
from kvboost.runtime.support import last_logits_only

MIN_QUESTION_TOKENS = 16


class QueryRepair:
    """Recompute the reused tokens that the question attends to most."""

    def select(self, context: RepairContext) -> Selection:
        """Run the selection pass and return the top positions that the rest of the budget pays for.

        Where fewer than 16 tokens are computed after the last reused run, the prompt's last 16 tokens are
        the question, and those of them that were reused are recomputed.
        """
        plan = context.plan
        question = _question(plan, context.token_ids, context.question_tokens)
        reused_question = _left(question[question < plan.tail_start], context)
        candidates = context.candidates
        candidates = candidates[candidates < question[0]]
        affordable = int(context.budget_tokens - len(question) - len(reused_question))
        count = min(affordable, len(candidates))
        if affordable <= 0:
            return context.nothing(
                f"the repair budget of {context.budget_tokens:.0f} tokens does not pay for the question's "
                f"{len(question) + len(reused_question)}"
            )
        if count == 0:
            return context.nothing()
        attention = _attention_of(question, context)
        best = attention[candidates].topk(count).indices
        positions = torch.cat([candidates[best].sort().values, reused_question])
        return Selection(positions, pass_tokens=len(question))


def _left(positions: Tensor, context: RepairContext) -> Tensor:
    """Return the ``positions`` that no strategy chose before."""
    return positions if context.taken is None else positions[~torch.isin(positions, context.taken)]


def _question(plan: Plan, token_ids: Tensor, at_most: int) -> Tensor:
    """Return the positions of the question, ascending."""
    start = max(plan.tail_start, plan.num_tokens - at_most)
    if plan.num_tokens - start < MIN_QUESTION_TOKENS:
        start = max(plan.num_tokens - MIN_QUESTION_TOKENS, 0)
    return torch.arange(start, plan.num_tokens, device=token_ids.device)


def _attention_of(question: Tensor, context: RepairContext) -> Tensor:
    """Return the attention that each position receives from the question, ``[N]`` fp32."""
    plan, model = context.plan, context.model
    filled = torch.zeros(plan.num_tokens, dtype=torch.bool, device=question.device)
    for piece in plan.reuse:
        filled[piece.target.start : piece.target.end] = True
    filled[question] = True
    recorder = AttentionRecorder(torch.zeros(plan.num_tokens, device=question.device))
    context.cache.set_splice(SplicePass(question, plan.num_tokens))
    try:
        mask = position_masks(model, question, plan.num_tokens, filled)
        with context.lock, recording(model, recorder):
            model(
                input_ids=context.token_ids[question][None],
                position_ids=question[None],
                attention_mask=mask,
                cache=context.cache,
                use_cache=True,
                **last_logits_only(model),
            )
    finally:
        context.cache.set_splice(None)
    return recorder.total
