"""One request while it is in the batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from kvboost.reuse import ReuseReport
from kvboost.runtime.batching.prefill import Prefill
from kvboost.runtime.batching.preparing import Begun
from kvboost.runtime.batching.request import Ended
from kvboost.runtime.batching.sampler import Sampler
from kvboost.runtime.kv.finite import without_distribution
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.model.device import synchronize
from kvboost.runtime.prepare.prepared import Prepared
from kvboost.runtime.serve.answer import GeneratedAnswer
from kvboost.runtime.serve.call import end_tokens
from kvboost.runtime.serve.engine import Engine
from kvboost.runtime.serve.finish import Passes
from kvboost.runtime.serve.guided import BrokenLogitsError
from kvboost.runtime.serve.logprobs import logprobs_of
from kvboost.runtime.serve.request import MOST_NEW_TOKENS


class Row:
    """Computes a prompt, takes its logits step by step, and stores, audits and reports at the end.

    Made on the thread that runs the model: where the repair asks the question, this is where it runs.

    Parameters
    ----------
    begun
        The request, its place, and its K/V, gathered.
    batched
        Whether the model decodes rows together; then its prompts may also be cut.

    Raises
    ------
    InputError
        If the request does not fit the model.
    """

    def __init__(self, engine: Engine, begun: Begun, batched: bool) -> None:
        placed = begun.placed.result()
        self.request = request = begun.request
        self.listener = begun.entry.listener
        self.context = begun.entry.context
        self.seat = begun.seat
        self.answer: list[int] = []
        self._engine = engine
        # "turn": its K/V were there, and the model was busy with others.
        self._stages_s = {
            **request.stages_s,
            "queue": placed.queue_s,
            "turn": time.perf_counter() - placed.at_s,
        }
        self._prepared = engine.complete(placed.gathered)
        self._watch = engine.finisher.watch(self._prepared) if request.max_new_tokens else None
        self._sampler = Sampler(engine.model, request.sampling, request.token_ids) if request.max_new_tokens else None
        self._batched = batched
        self._prefill = Prefill(engine.model, self._prepared.splice, batched)
        self._lent: Prepared | None = None
        self._ttft_s = 0.0
        self._pass_s: list[float] = []
        self._ready_s = time.perf_counter()

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
        """Compute ``max_tokens`` more of the prompt; return the last one's logits ``[1, vocab]`` when all are done.

        Where reused K/V led to none that give a distribution, the prompt begins again without them.
        """
        start_s = time.perf_counter()
        logits = self._prefill.advance(max_tokens)
        synchronize(self._engine.model.device)
        now_s = time.perf_counter()
        self._pass_s.append(now_s - start_s)
        if logits is not None and self._begins_again(logits):
            return None
        if logits is not None:
            self._ttft_s = now_s - self.request.arrived_s
            # Between the pieces of its prompt, the steps of others.
            self._stages_s["beside"] = now_s - self._ready_s - sum(self._pass_s)
        return logits

    def _begins_again(self, logits: Tensor) -> bool:
        """Return whether the logits of the prompt's last token give no distribution and reuse may be to blame."""
        engine, prepared, broken = self._engine, self._prepared, without_distribution(logits)
        error = BrokenLogitsError((0,))
        if self._lent is not None:
            engine.blame([self._lent], error, bool(broken))
            return False
        if not broken or not prepared.plan.reuse:
            return False
        self._lent, self._watch = prepared, None
        room = min(self.request.max_new_tokens, MOST_NEW_TOKENS)
        self._prepared = engine.given_up(prepared, room, error)
        self._prefill = Prefill(engine.model, self._prepared.splice, self._batched)
        return True

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

    def finish(self) -> Ended:
        """Store what was computed, audit if the row was drawn, and return the end to tell of."""
        ids = [*self.request.token_ids, *self.answer]
        passes = Passes(self._ttft_s, self._pass_s[0] if len(self._pass_s) == 1 else None, self._stages_s)
        finished = self._engine.finisher.finish(self._prepared, self._watch, ids, passes, self.request.namespace)
        if self.request.skip_cache:
            self._engine.counters.add("plain_requests")
        else:
            self._engine.counters.count(finished.report)
        ended = bool(self.answer) and self.answer[-1] in end_tokens(self._engine.model)
        return Ended(GeneratedAnswer(tuple(self.answer), ended, finished.report), finished.stored)


def with_stages(report: ReuseReport, before_s: Mapping[str, float]) -> ReuseReport:
    """Return the report of the plain path as the caller sees it: with the time before the engine was called."""
    return replace(report, ttft_s=report.ttft_s + sum(before_s.values()), stages_s={**before_s, **report.stages_s})
