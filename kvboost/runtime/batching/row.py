"""One request while it is in the batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kvboost.reuse import ReuseReport
from kvboost.runtime.audit.shadow import Watch
from kvboost.runtime.batching.prefill import Prefill
from kvboost.runtime.batching.request import BatchRequest, Ended, Listener
from kvboost.runtime.batching.sampler import Sampler
from kvboost.runtime.kv.slab import HEAD_ROOM_TOKENS, SlabCache
from kvboost.runtime.kv.splice import Splice
from kvboost.runtime.model.device import synchronize
from kvboost.runtime.plan.plan import Plan
from kvboost.runtime.prepare.prepare import Prepared, Stages
from kvboost.runtime.serve.answer import GeneratedAnswer
from kvboost.runtime.serve.engine import Engine, end_tokens
from kvboost.runtime.serve.logprobs import logprobs_of

# A limit far above what is usually answered must not cost memory: the slab grows when it has to.
_MOST_NEW_TOKENS = 1024


class Row:
    """Prepares a prompt, takes its logits step by step, and stores, audits and reports at the end.

    Parameters
    ----------
    waited_s
        Seconds between submission and now.
    batched
        Whether the model decodes rows together; then its prompts may also be cut.

    Raises
    ------
    InputError
        If the request does not fit the model.
    """

    def __init__(
        self, engine: Engine, request: BatchRequest, listener: Listener, waited_s: float, batched: bool
    ) -> None:
        self.request = request
        self.listener = listener
        self.answer: list[int] = []
        self._engine = engine
        self._stages_s = {**request.stages_s, "queue": waited_s}
        self._prepared = _prepared(engine, request)
        self._watch = Watch() if request.max_new_tokens and engine.audit.wants(self._prepared) else None
        self._sampler = Sampler(engine.model, request.sampling, request.token_ids) if request.max_new_tokens else None
        self._prefill = Prefill(engine.model, self._prepared.splice, batched)
        self._ttft_s = 0.0
        self._pass_s: list[float] = []

    @property
    def cache(self) -> SlabCache:
        """The row's K/V."""
        return self._prepared.splice.cache

    @property
    def length(self) -> int:
        """Tokens with K/V between two steps: all but the newest."""
        return len(self.request.token_ids) + len(self.answer) - 1

    @property
    def plain(self) -> bool:
        """Whether the row takes the most likely token."""
        return self._sampler is not None and self._sampler.plain

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that are not computed yet."""
        return self._prefill.left

    def prefill(self, max_tokens: int | None) -> Tensor | None:
        """Compute ``max_tokens`` more of the prompt; return the last one's logits ``[1, vocab]`` when all are done."""
        start_s = time.perf_counter()
        logits = self._prefill.advance(max_tokens)
        synchronize(self._engine.model.device)
        now_s = time.perf_counter()
        self._pass_s.append(now_s - start_s)
        if logits is not None:
            self._ttft_s = now_s - self.request.arrived_s
        return logits

    def take(self, logits: Tensor, most_likely: int | None = None) -> bool:
        """Choose a token by ``logits`` ``[1, vocab]`` and tell the listener; return whether the answer is over."""
        if self._sampler is None:
            return True
        if self._watch is not None:
            self._watch.see(logits[:, None])
        token = self._sampler.choose(logits) if most_likely is None else most_likely
        self._sampler.note(token)
        self.answer.append(token)
        if self.request.on_logprobs is not None:
            self.request.on_logprobs(logprobs_of(logits, token, self.request.top_logprobs))
        stopped = self.listener.on_token(token)
        full = len(self.answer) >= self.request.max_new_tokens
        return stopped or full or token in end_tokens(self._engine.model)

    def finish(self) -> None:
        """Store what was computed, audit if the row was drawn, and tell the listener."""
        engine, prepared = self._engine, self._prepared
        report = prepared.report(self._ttft_s)
        report = replace(report, stages_s={**self._stages_s, **report.stages_s})
        ids = [*self.request.token_ids, *self.answer]
        stored = None
        if self.request.skip_cache:
            engine.counters.add("plain_requests")
        else:
            if len(self._pass_s) == 1:
                engine.preparer.costs.observe(report, self._pass_s[0])
            report = engine.preparer.costs.priced(report)
            engine.counters.count(report)
            stored = engine.store(prepared.plan, ids, self.cache, namespace=self.request.namespace, keep=False)
        if self._watch is not None:
            engine.audit.submit(prepared, self._watch, 0, ids)
        ended = bool(self.answer) and self.answer[-1] in end_tokens(engine.model)
        self.listener.on_end(Ended(GeneratedAnswer(tuple(self.answer), ended, report), stored))


def _prepared(engine: Engine, request: BatchRequest) -> Prepared:
    """Return the prompt with what it reuses; nothing where the cache is skipped or the model has changed."""
    preparer = engine.preparer
    room = min(request.max_new_tokens, _MOST_NEW_TOKENS)
    if not request.skip_cache and engine.unchanged():
        controller = engine.audit.controller if request.policy is None else None
        return preparer.prepare(request.token_ids, room, request.policy, controller)
    plan = Plan(len(request.token_ids), ())
    if not request.skip_cache:
        plan = plan.noting("the active adapters changed since boost(); boost the model again")
    cache = preparer.slabs.take(plan.num_tokens + room + HEAD_ROOM_TOKENS)
    ids = torch.tensor(request.token_ids, device=engine.model.device)
    nothing = torch.empty(0, dtype=torch.long, device=ids.device)
    return Prepared(plan, Splice(cache, ids, nothing, 0, None, preparer.support), stages=Stages())


def with_stages(report: ReuseReport, before_s: Mapping[str, float]) -> ReuseReport:
    """Return the report of the plain path as the caller sees it: with the time before the engine was called."""
    return replace(report, ttft_s=report.ttft_s + sum(before_s.values()), stages_s={**before_s, **report.stages_s})
