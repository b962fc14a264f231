"""The drop-in: a model's ``generate()`` with reuse.

``generate()`` of transformers stays in charge. It is handed a cache that already holds the reused K/V, and its
own prefill computes the rest: where tokens before the tail are to be computed too, hooks on the model widen
that one forward pass to them. Rows of a batch are prepared one by one and joined, left-padded.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvboost.deadline import within
from kvboost.errors import FallbackWarning, KVBoostError, LateFetchError
from kvboost.origin import Origin
from kvboost.policy import ReusePolicy
from kvboost.reuse import ReuseReport
from kvboost.runtime.audit.audit import Audit
from kvboost.runtime.audit.shadow import Watch
from kvboost.runtime.control.controller import Controller
from kvboost.runtime.prepare.prepare import Preparer
from kvboost.runtime.prepare.prepared import Gathered, Prepared, Stages
from kvboost.runtime.prepare.report import merge
from kvboost.runtime.serve.call import Call, end_tokens, named_arguments, sequences
from kvboost.runtime.serve.finish import Finisher, Passes
from kvboost.runtime.serve.follow import Follower
from kvboost.runtime.serve.gather import Gatherer
from kvboost.runtime.serve.guided import BrokenLogitsError, Guide, GuidedGenerate
from kvboost.runtime.serve.joined import joined
from kvboost.runtime.serve.request import Declined, PromptRow, Request, prompt_tokens, read_request
from kvboost.runtime.serve.storing import Part, Storer
from kvboost.runtime.serve.writer import Writer
from kvboost.types import Namespace, Tier

REQUEST_TIMEOUT_S = 30.0


class Engine:
    """Serves ``generate()`` of one model with reuse. Made by :func:`kvboost.boost`.

    Parameters
    ----------
    follower
        Knows which namespace the model belongs in, whatever becomes of it.
    plain_generate
        The model's own ``generate()``.
    owns_cache
        Whether :meth:`close` closes the cache too.
    request_timeout_s
        What one request may wait for the cache, all its calls together.
    """

    def __init__(
        self,
        preparer: Preparer,
        follower: Follower,
        plain_generate: Callable[..., Any],
        owns_cache: bool = False,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.preparer = preparer
        self.follower = follower
        self.model = preparer.model
        self.tokenizer = preparer.tokenizer
        self.cache = preparer.cache
        self.support = preparer.support
        self.policy = preparer.policy
        self.costs = preparer.costs
        self.counters = preparer.costs.counters
        self.writer = Writer(preparer.cache, self.counters)
        self.storer = Storer(preparer, self.writer)
        self.gatherer = Gatherer(preparer, self.writer, request_timeout_s)
        self._owns_cache = owns_cache
        self._origin = Origin()
        self._following = threading.Lock()
        self._generate = GuidedGenerate(preparer.model, plain_generate)
        model = preparer.model
        self.audit = Audit(model, preparer.namespace.key, Controller(preparer.policy), self.counters, follower.holds)
        self.finisher = Finisher(self.costs, self.audit, self.storer, follower.holds)

    @torch.no_grad()
    def generate(
        self, inputs: Tensor | None = None, *args: Any, policy: ReusePolicy | None = None, **kwargs: Any
    ) -> tuple[Any, ReuseReport]:
        """Run ``generate()`` with reuse; return its result and the report.

        Raises what the model's own ``generate()`` raises.
        """
        call = Call(inputs, named_arguments(args, kwargs), policy, time.perf_counter())
        if refusal := self._origin.refusal("what boost() put on the model"):
            # Not even a counter: its lock may have been held at the time.
            warnings.warn(f"full prefill instead of reuse: {refusal}", FallbackWarning, stacklevel=4)
            return self._decline(Declined(refusal, prompt_tokens(inputs, call.arguments)), call)
        request = read_request(self.model, inputs, call.arguments)
        lengths = [len(row.token_ids) for row in request.rows] if isinstance(request, Request) else []
        if isinstance(request, Request) and (obstacle := self.obstacle(max(lengths))):
            request = Declined(obstacle, sum(lengths))
        if isinstance(request, Declined):
            result, report = self._decline(request, call)
        else:
            one = len(request.rows) == 1 and request.expand == 1
            result, report = (self._serve_one if one else self._serve_batch)(request, call)
        self.counters.count(report)
        return result, report

    @torch.no_grad()
    def run_plain(self, inputs: Tensor, **arguments: Any) -> tuple[Any, float]:
        """Run the model's own ``generate()`` without reuse; return its result and the time to first token."""
        ran = self._generate.run(Call(inputs, arguments, None, time.perf_counter()))
        return ran.result, ran.ttft_s

    def close(self) -> None:
        """Put what is pending, take the hooks off the model, and close the cache if it is the engine's own.

        Waits for a running audit. In a forked child only the hooks come off: all else is its parent's.
        """
        self._generate.remove()
        if self._origin.refusal("the engine"):
            return
        self.audit.close()
        self.writer.close()
        self.preparer.hands.close()
        if self._owns_cache:
            self.cache.close()

    @property
    def hook_ids(self) -> frozenset[int]:
        """The keys of the engine's hooks on the model."""
        return self._generate.hook_ids

    def obstacle(self, tokens: int) -> str:
        """Name why nothing can be reused or stored for a prompt of so many tokens, or return an empty string."""
        limit = self.support.longest_prompt
        if limit is not None and tokens > limit:
            return f"beyond {limit} tokens the model rotates the keys of the whole prompt by other frequencies"
        with self._following:  # or an earlier answer could be taken for the later one
            standing = self.follower.now()
            if not standing.reason and standing.namespace != self.preparer.namespace:
                self.preparer = replace(self.preparer, namespace=standing.namespace)
                self.gatherer = replace(self.gatherer, preparer=self.preparer)
        return standing.reason

    @property
    def namespace(self) -> Namespace:
        """Where K/V of the model belong, as it was at the latest request."""
        return self.preparer.namespace

    def complete(self, gathered: Gathered) -> Prepared:
        """Complete a prompt on the thread that runs the model, unless that is another model by now."""
        if gathered.plan.reuse and not self.follower.holds(gathered.namespace):
            ids = gathered.token_ids.tolist()
            gathered = self.preparer.blank(ids, gathered.new_tokens, "the model changed while the prompt was prepared")
        return self.preparer.complete(gathered)

    def _serve_one(self, request: Request, call: Call) -> tuple[Any, ReuseReport]:
        row = request.rows[0]
        if row.padding:
            return self._serve_batch(request, call)
        # A streamer was handed the prompt when the pass fails, and must not be handed it twice.
        overlap = call.arguments.get("streamer") is None
        prepared = self._prepared([row], request.new_tokens, call, overlap)[0]
        watch = self.finisher.watch(prepared)
        before_s = time.perf_counter() - call.start_s
        try:
            ran = self._generate.run(call, _guide(prepared, watch))
        except (LateFetchError, BrokenLogitsError) as error:
            lent, prepared, watch = prepared, self.given_up(prepared, request.new_tokens, error), None
            ran = self._generate.run(call.again(), _guide(prepared))
            self.blame([lent], error, bool(ran.broken))
        ids = self._answered(row, sequences(ran.result)[0].tolist())
        waited = prepared.splice.cache.layers[0].gate is not None  # for K/V, within the pass
        prepared.splice.cache.set_gate(None)  # all are in place, and the caller may want to copy it
        passes = Passes(ran.ttft_s, None if waited else ran.ttft_s - before_s, {"setup": ran.setup_s})
        return ran.result, self.finisher.finish(prepared, watch, ids, passes, keep=request.returns_dict).report

    def _prepared(
        self, rows: Sequence[PromptRow], new_tokens: int, call: Call, overlap: bool = False
    ) -> list[Prepared]:
        """Prepare the rows of one call once everything is stored that was put before."""
        controller = self.audit.controller
        with within(self.gatherer.timeout_s):
            stages = [self.gatherer.settle(), *(Stages() for _ in rows[1:])]
            return [
                self.preparer.prepare(row.token_ids, new_tokens, call.policy, controller, overlap, its)
                for row, its in zip(rows, stages, strict=True)
            ]

    def _serve_batch(self, request: Request, call: Call) -> tuple[Any, ReuseReport]:
        prepared = self._prepared(request.rows, 0, call)
        audited = [self.audit.wants(ready) for ready in prepared]
        watch = Watch() if any(audited) else None
        cache = joined(self.model, self.preparer.slabs, request, prepared)
        borrowed = any(ready.plan.reuse for ready in prepared)
        try:
            ran = self._generate.run(call, Guide(cache, watch=watch, borrowed=borrowed))
        except BrokenLogitsError as error:
            lent = [prepared[row] for row in sorted({row // request.expand for row in error.rows})]
            prepared, watch = [self.given_up(ready, 0, error) for ready in prepared], None
            cache = joined(self.model, self.preparer.slabs, request, prepared)
            ran = self._generate.run(call.again(), Guide(cache))
            self.blame(lent, error, bool(ran.broken))
        answered = sequences(ran.result)
        per_row = answered.shape[0] // len(request.rows)
        unchanged = all(self.follower.holds(namespace) for namespace in {ready.namespace for ready in prepared})
        if not unchanged:  # since the rows were prepared: the cache holds K/V of two models
            self.counters.add("unstored_changed", len(prepared))
        for i, (row, ready) in enumerate(zip(request.rows, prepared, strict=True)):
            if not ready.stores or not unchanged:
                continue
            # Beams share the prompt but permute what follows it, so only the prompt is stored.
            ids = answered[i * per_row, row.padding :].tolist() if request.beams == 1 else list(row.token_ids)
            ids = self._answered(row, ids)
            part = Part(cache, i * request.expand, row.padding, shared=True, caller_owns=request.returns_dict)
            self.storer.store(ready.plan, ids, part, ready.namespace, ready.may_be_continued)
            if watch is not None and audited[i]:
                self.audit.submit(ready, watch, i * request.expand, ids)
        reports = [ready.report(ran.ttft_s) for ready in prepared]
        return ran.result, self.costs.priced(reports[0] if len(reports) == 1 else merge(reports, ran.ttft_s))

    def given_up(self, prepared: Prepared, new_tokens: int, error: LateFetchError | BrokenLogitsError) -> Prepared:
        """Return the same prompt with nothing reused; after broken logits nothing of it is stored either."""
        token_ids = prepared.splice.token_ids.tolist()
        if isinstance(error, LateFetchError):
            return self.preparer.fall_back(token_ids, new_tokens, error)
        if not prepared.plan.reuse:
            return self.preparer.complete(self.preparer.blank(token_ids, new_tokens))
        return replace(self.preparer.fall_back(token_ids, new_tokens, error), stores=False)

    def blame(self, lent: Sequence[Prepared], error: LateFetchError | BrokenLogitsError, again: bool) -> None:
        """Evict the donors of prompts whose logits they broke; where full prefill broke ``again``, it was not they."""
        if isinstance(error, LateFetchError):
            return
        self.counters.add("non_finite_logits")
        if again:
            return
        self.preparer.continued.clear()
        if donors := [chunk_id for prepared in lent for chunk_id in prepared.plan.chunk_ids()]:
            with suppress(KVBoostError):
                self.cache.evict(lent[0].namespace, donors)

    def _decline(self, declined: Declined, call: Call) -> tuple[Any, ReuseReport]:
        ran = self._generate.run(call)
        tokens = declined.prompt_tokens
        tiers = {**dict.fromkeys(Tier, 0), Tier.COMPUTED: tokens}
        return ran.result, ReuseReport(tokens, tiers, ttft_s=ran.ttft_s, declined=(declined.reason,))

    def _answered(self, row: PromptRow, ids: list[int]) -> list[int]:
        """Return prompt and answer without the padding that follows an end token."""
        ends = end_tokens(self.model)
        return ids[: next((i + 1 for i in range(len(row.token_ids), len(ids)) if ids[i] in ends), len(ids))]


def _guide(prepared: Prepared, watch: Watch | None = None) -> Guide:
    return Guide(prepared.splice.cache, prepared.splice, watch, bool(prepared.plan.reuse))
