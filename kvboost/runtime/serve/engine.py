"""The drop-in: a model's ``generate()`` with reuse.

``generate()`` of transformers stays in charge. It is handed a cache that already holds the reused K/V, and its
own prefill computes the rest: where tokens before the tail are to be computed too, hooks on the model widen
that one forward pass to them. Rows of a batch are prepared one by one and joined, left-padded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvboost.deadline import within
from kvboost.errors import LateFetchError
from kvboost.policy import ReusePolicy
from kvboost.reuse import ReuseReport
from kvboost.runtime.audit.audit import Audit
from kvboost.runtime.audit.shadow import Watch
from kvboost.runtime.control.controller import Controller
from kvboost.runtime.kv.harvest import new_chunks
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.kv.splice import Splice
from kvboost.runtime.model.device import synchronize
from kvboost.runtime.model.fingerprint import adapter_key
from kvboost.runtime.plan.plan import Plan
from kvboost.runtime.prepare.prepare import Preparer
from kvboost.runtime.prepare.prepared import Prepared
from kvboost.runtime.prepare.report import merge
from kvboost.runtime.serve.call import Call, named_arguments, sequences
from kvboost.runtime.serve.finish import Finisher, Passes
from kvboost.runtime.serve.gather import Gatherer
from kvboost.runtime.serve.joined import joined
from kvboost.runtime.serve.request import Declined, PromptRow, Request, read_request
from kvboost.runtime.serve.writer import Writer
from kvboost.types import PutReceipt, PutRequest, Tier

REQUEST_TIMEOUT_S = 30.0


class _FirstPass(threading.local):
    """What the next forward pass of this thread is: armed just before ``generate()`` is called.

    A ``watch`` sees that pass and all that follow until ``generate()`` returns.
    """

    armed = False
    splice: Splice | None = None
    watch: Watch | None = None
    finished_s: float | None = None

    def __init__(self) -> None:
        self.scope = ExitStack()


class Engine:
    """Serves ``generate()`` of one model with reuse. Made by :func:`kvboost.boost`.

    Parameters
    ----------
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
        plain_generate: Callable[..., Any],
        owns_cache: bool = False,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.preparer = preparer
        self.model = preparer.model
        self.tokenizer = preparer.tokenizer
        self.cache = preparer.cache
        self.namespace = preparer.namespace
        self.support = preparer.support
        self.policy = preparer.policy
        self.costs = preparer.costs
        self.counters = preparer.costs.counters
        self.writer = Writer(preparer.cache, self.counters)
        self.gatherer = Gatherer(preparer, self.writer, request_timeout_s)
        self.plain_generate = plain_generate
        self._owns_cache = owns_cache
        self._first = _FirstPass()
        self._adapter = adapter_key(preparer.model)
        model = preparer.model
        self.audit = Audit(model, preparer.namespace.key, Controller(preparer.policy), self.counters, self.unchanged)
        self.finisher = Finisher(self.costs, self.audit, self.store)
        self._hooks = (
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward),
        )

    @torch.no_grad()
    def generate(
        self, inputs: Tensor | None = None, *args: Any, policy: ReusePolicy | None = None, **kwargs: Any
    ) -> tuple[Any, ReuseReport]:
        """Run ``generate()`` with reuse; return its result and the report.

        Raises
        ------
        PromptError
            If the prompt is empty or longer than the model's context.
        """
        call = Call(inputs, named_arguments(args, kwargs), policy, time.perf_counter())
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
        return self._run(Call(inputs, arguments, None, time.perf_counter()), None, None)

    def close(self) -> None:
        """Put what is pending, take the hooks off the model, and close the cache if it is the engine's own.

        Waits for a running audit.
        """
        self.audit.close()
        self.writer.close()
        self.preparer.hands.close()
        if self._owns_cache:
            self.cache.close()
        for hook in self._hooks:
            hook.remove()

    def obstacle(self, tokens: int) -> str:
        """Name why nothing can be reused or stored for a prompt of so many tokens, or return an empty string."""
        limit = self.support.longest_prompt
        if limit is not None and tokens > limit:
            return f"beyond {limit} tokens the model rotates the keys of the whole prompt by other frequencies"
        if not self.unchanged():
            return "the active adapters changed since boost(); boost the model again"
        return ""

    def unchanged(self) -> bool:
        """Return whether the active adapters are those that the model was boosted with."""
        return adapter_key(self.model) == self._adapter

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
            result, ttft_s = self._run(call, prepared.splice.cache, prepared.splice, watch)
        except LateFetchError as error:
            prepared, watch = self.preparer.fall_back(row.token_ids, request.new_tokens, error), None
            result, ttft_s = self._run(call, prepared.splice.cache, prepared.splice)
        ids = self._answered(row, sequences(result)[0].tolist())
        waited = prepared.splice.cache.layers[0].gate is not None  # for K/V, within the pass
        passes = Passes(ttft_s, None if waited else ttft_s - before_s)
        return result, self.finisher.finish(prepared, watch, ids, passes, keep=request.returns_dict).report

    def _prepared(
        self, rows: Sequence[PromptRow], new_tokens: int, call: Call, overlap: bool = False
    ) -> list[Prepared]:
        """Prepare the rows of one call once everything is stored that was put before."""
        controller = self.audit.controller
        with within(self.gatherer.timeout_s):
            self.gatherer.settle()
            return [self.preparer.prepare(row.token_ids, new_tokens, call.policy, controller, overlap) for row in rows]

    def _serve_batch(self, request: Request, call: Call) -> tuple[Any, ReuseReport]:
        prepared = self._prepared(request.rows, 0, call)
        cache = joined(self.model, self.preparer.slabs, request, prepared)
        audited = [self.audit.wants(ready) for ready in prepared]
        watch = Watch() if any(audited) else None
        result, ttft_s = self._run(call, cache, None, watch)
        answered = sequences(result)
        per_row = answered.shape[0] // len(request.rows)
        for i, (row, ready) in enumerate(zip(request.rows, prepared, strict=True)):
            # Beams share the prompt but permute what follows it, so only the prompt is stored.
            ids = answered[i * per_row, row.padding :].tolist() if request.beams == 1 else list(row.token_ids)
            ids = self._answered(row, ids)
            self.store(ready.plan, ids, cache, i * request.expand, row.padding, at_once=request.returns_dict)
            if watch is not None and audited[i]:
                self.audit.submit(ready, watch, i * request.expand, ids)
        reports = [ready.report(ttft_s) for ready in prepared]
        return result, self.costs.priced(reports[0] if len(reports) == 1 else merge(reports, ttft_s))

    def _run(
        self, call: Call, cache: SlabCache | None, splice: Splice | None, watch: Watch | None = None
    ) -> tuple[Any, float]:
        """Call the model's own ``generate()``; return its result and the time to first token."""
        first = self._first
        first.watch = watch
        first.armed, first.splice, first.finished_s = True, splice, None
        arguments = call.arguments if cache is None else {**call.arguments, "cache": cache}
        try:
            result = self.plain_generate(call.inputs, **arguments)
        finally:
            first.scope.close()
            first.armed, first.splice, first.watch = False, None, None
        return result, (first.finished_s or time.perf_counter()) - call.start_s

    def _decline(self, declined: Declined, call: Call) -> tuple[Any, ReuseReport]:
        result, ttft_s = self._run(call, None, None)
        tokens = declined.prompt_tokens
        tiers = {**dict.fromkeys(Tier, 0), Tier.COMPUTED: tokens}
        return result, ReuseReport(tokens, tiers, ttft_s=ttft_s, declined=(declined.reason,))

    def _before_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Widen the first forward pass of an armed ``generate()`` to the scattered tokens."""
        splice = self._first.splice
        if not self._first.armed or splice is None or len(splice.scattered) == 0:
            return None
        arguments = self._first.scope.enter_context(splice.passing(self.model, len(splice.token_ids)))
        return args, {**kwargs, **arguments}

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._first.armed:
            self._first.armed = False
            synchronize(self.model.device)
            self._first.finished_s = time.perf_counter()
            self._first.scope.close()
        if self._first.watch is not None:
            self._first.watch.see(output.logits)

    def _answered(self, row: PromptRow, ids: list[int]) -> list[int]:
        """Return prompt and answer without the padding that follows an end token."""
        ends = end_tokens(self.model)
        return ids[: next((i + 1 for i in range(len(row.token_ids), len(ids)) if ids[i] in ends), len(ids))]

    def store(
        self,
        plan: Plan,
        ids: list[int],
        cache: SlabCache,
        index: int = 0,
        padding: int = 0,
        namespace: str = "",
        keep: bool = True,
        at_once: bool = False,
    ) -> Future[PutReceipt]:
        """Offer what a row computed to the cache, in the background; to the model's own namespace unless named.

        Without ``keep`` nobody reads ``cache`` any more, and its memory goes to a later request. With ``at_once`` its
        chunks are cut out before this returns: the caller of ``generate()`` is to own it, and may change it.
        """
        preparer = self.preparer

        def build() -> PutRequest:
            count = min(len(ids), cache.get_seq_length() - padding)
            keys, values = (each[:, index, :, padding : padding + count] for each in cache.contents())
            chunks = new_chunks(ids[:count], plan, preparer.segmenter, keys, values, self.support.layout)
            if not keep:
                preparer.slabs.give(cache)
            return PutRequest(namespace or self.namespace.key, tuple(ids[:count]), chunks)

        return self.writer.submit(build, at_once, ids[: plan.num_tokens])


def end_tokens(model: PreTrainedModel) -> frozenset[int]:
    """Return the tokens that end an answer."""
    ends = model.generation_config.eos_token_id
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])
