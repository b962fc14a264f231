"""Query repair: recompute what the question attends to.

The question's tokens run once over the re-rotated cache; the context tokens are ranked by the attention that
they receive times the norm of the value that it carries (mean over heads, question tokens and layers), and the top of
the list is recomputed together with the question. The idea of letting the question choose is that of ProphetKV.

Attention says how much a token's K/V matter, not how wrong they are, so it is weighted by two things that are known
without computing anything. A token deep in its run has attended mostly to tokens of its own run, which are still
there, so it is less wrong than one near the run's start. And tokens right before the question are attended to for
their place, whatever they say. Mean KL to full prefill on the demo model, 3 prompts of about 2,450 tokens with six
documents in a new order, with shift, rotate only .0716:

=====================================================  =====  =====  =====
recompute ratio                                          .05    .10    .15
=====================================================  =====  =====  =====
attention alone                                        .0225  .0113  .0058
x (1 + 4 exp(-depth / 16))                             .0181  .0073  .0041
x (1 + 4 exp(-depth / 64))                             .0163  .0072  .0039
/ (1 + depth / 16)                                     .0148  .0076  .0050
/ (1 + depth / 64)                                     .0162  .0090  .0044
/ sqrt(1 + depth / 32)                                 .0168  .0080  .0036
x sqrt(distance, 256 at most)                          .0174  .0092  .0050
x sqrt(distance, 256 at most) / sqrt(1 + depth / 32)   .0142  .0072  .0037
a quarter for heads of runs, the rest by attention     .0183  .0094  .0074
=====================================================  =====  =====  =====

The norm of the values matters at large budgets: mean KL over rotate-only's at .05 / .15 / .30 on 2 prompts of about
1,300 tokens .31 / .20 / .12 with it, .31 / .20 / .14 without. With it, ``1 / (1 + depth / 32)`` gave .30 / .17 / .14.
Means over three or five neighbours, the root of the attention, the largest head, a farther or nearer reach of the
distance were no better.

At small budgets the pass ends half-way: what the first half of the layers attends to chooses about as well as what all
do, for half the cost. Mean KL over rotate-only's at .05 and .15, 4 prompts of about 1,330 tokens, the same number of
tokens recomputed: all 30 layers .353 and .204, the first 25 .349 and .194, 20 .358 and .192, 15 .357 and .199, 10 .365
and .196. At .30, where the pass costs little, all layers chose better: .078 and .154 against .097 and .178 on two of
these prompts. So it runs through all of them where that takes at most 7 % of the budget.

A small budget is better spent without looking: on the tokens chosen by the two known things alone, the whole of it for
them. Mean KL over rotate-only's, known things against attention with its pass charged; the question takes 18 to 22
tokens, its pass costs half of that. Documents in a new order: two in 4 prompts of 270 and 4 of 390 tokens, four in 11
prompts of 820 to 1,090 and 6 of 1,340, twelve in 3 of 3,700:

===============  ========  ========  ========  ========  ========
recompute ratio  270       390       1,000     1,340     3,700
===============  ========  ========  ========  ========  ========
.02                                  .90 .84             .43 .35
.05              .95 1     .97 1     .58 .51   .27 .30   .31 .25
.08              .89 1     .62 .90   .32 .42
.15              .61 .53   .18 .44   .23 .28   .19 .16
.30              .29 .12   .10 .18             .20 .11
===============  ========  ========  ========  ========  ========

The pass also reads all weights of its layers for a few tokens, which the budget does not count: .05 s of .28 s at 1,000
tokens and .05. So it is left out where it would take more than an eighth of the budget.
"""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from torch import Tensor

from kvboost.runtime.attention.masks import position_masks
from kvboost.runtime.attention.recording import AttentionRecorder, recording
from kvboost.runtime.kv.slab import PassEnded, SplicePass
from kvboost.runtime.model.support import last_logits_only
from kvboost.runtime.plan.plan import Plan
from kvboost.runtime.repair.base import RepairContext, Selection
from kvboost.types import Tier

MIN_QUESTION_TOKENS = 16
DEPTH_TOKENS = 32
NEAR_TOKENS = 256
MAX_PASS_SHARE = 0.125
PASS_DEPTH = 0.5
FULL_PASS_SHARE = 0.07


class QueryRepair:
    """Recompute the reused tokens that the question attends to most."""

    def select(self, context: RepairContext) -> Selection:
        """Run the selection pass and return the top positions that the rest of the budget pays for.

        Where fewer than 16 tokens are computed after the last reused run, the prompt's last 16 tokens are
        the question, and those of them that were reused at a loss are recomputed.
        """
        question = _question(context.plan, context.token_ids, context.question_tokens)
        asks = context.candidates >= question[0]
        candidates, reused_question = context.candidates[~asks], context.candidates[asks]
        left = int(context.budget_tokens) - len(reused_question)
        if left <= 0:
            return context.nothing(
                f"the repair budget of {context.budget_tokens:.0f} tokens does not pay for the reused tokens of the "
                f"question, {len(reused_question)}"
            )
        worth, pass_tokens, declined = prior(context.plan, question.device), 0.0, None
        looking = len(question) * _layers(context, question) / len(context.cache.layers)
        if looking > MAX_PASS_SHARE * left:
            declined = (
                f"the question's pass, which costs {looking:.0f} tokens, would take more of the repair budget of "
                f"{context.budget_tokens:.0f} than it is worth; tokens were chosen by their place alone"
            )
        elif len(candidates) > 0:
            worth, pass_tokens = worth * _attention_of(question, context), looking
        count = min(int(left - pass_tokens), len(candidates))
        if count == 0:
            return context.nothing()
        best = worth[candidates].topk(count).indices
        positions = torch.cat([candidates[best].sort().values, reused_question])
        return Selection(positions, pass_tokens=pass_tokens, declined=declined)


def prior(plan: Plan, device: torch.device) -> Tensor:
    """Return what attention to each position is multiplied with, ``[N]`` fp32; see the module."""
    positions = torch.arange(plan.num_tokens, device=device)
    depth = torch.zeros(plan.num_tokens, device=device)
    for run in plan.runs:
        depth[run.span.start : run.span.end] = torch.arange(len(run.span), device=device, dtype=depth.dtype)
    distance = (plan.num_tokens - positions).clamp_max(NEAR_TOKENS)
    return (distance / (1.0 + depth / DEPTH_TOKENS)).sqrt()


def _question(plan: Plan, token_ids: Tensor, at_most: int) -> Tensor:
    """Return the positions of the question, ascending; what was reused without loss is not run again."""
    start = max(plan.tail_start, plan.num_tokens - at_most)
    if plan.num_tokens - start < MIN_QUESTION_TOKENS:
        start = max(plan.num_tokens - MIN_QUESTION_TOKENS, 0)
    lossless = torch.zeros(plan.num_tokens, dtype=torch.bool, device=token_ids.device)
    for piece in plan.reuse:
        lossless[piece.target.start : piece.target.end] = piece.tier in (Tier.PREFIX, Tier.CONTINUED)
    return start + (~lossless[start:]).nonzero().flatten()


def _layers(context: RepairContext, question: Tensor) -> int:
    """Return how many layers the question's pass runs through."""
    layers = len(context.cache.layers)
    affordable = len(question) <= FULL_PASS_SHARE * context.budget_tokens
    return layers if affordable else math.ceil(PASS_DEPTH * layers)


def _attention_of(question: Tensor, context: RepairContext) -> Tensor:
    """Return what each position adds to the question's outputs, ``[N]`` fp32."""
    plan, model = context.plan, context.model
    filled = torch.zeros(plan.num_tokens, dtype=torch.bool, device=question.device)
    for piece in plan.reuse:
        filled[piece.target.start : piece.target.end] = True
    filled[question] = True
    recorder = AttentionRecorder(torch.zeros(plan.num_tokens, device=question.device))
    layers = _layers(context, question)
    context.cache.set_splice(SplicePass(question, plan.num_tokens, layers=layers))
    try:
        mask = position_masks(model, question, plan.num_tokens, filled)
        with context.lock, recording(model, recorder), suppress(PassEnded):
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
    return recorder.carried
