"""From a prompt to a slab with everything reused in place: segment, match, plan, fetch, re-rotate, repair."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvboost.errors import (
    ChecksumError,
    FallbackWarning,
    InputError,
    KVBoostError,
    LateFetchError,
    NonFiniteError,
    TensorError,
    UnknownNamespaceError,
)
from kvboost.policy import ReusePolicy
from kvboost.protocols import ChunkCache, PartSource, PromptSegmenter
from kvboost.runtime.control.controller import Controller
from kvboost.runtime.control.effective_policy import EffectivePolicy
from kvboost.runtime.cost.cost_gate import Costs
from kvboost.runtime.cost.meter import path_of
from kvboost.runtime.kv.continued import Continued
from kvboost.runtime.kv.layer_wise_load import LayerWiseLoad, parts_of
from kvboost.runtime.kv.placing import Placer
from kvboost.runtime.kv.slab import HEAD_ROOM_TOKENS, SlabCache
from kvboost.runtime.kv.slab_pool import SlabPool
from kvboost.runtime.kv.splice import Splice, gaps_before_tail
from kvboost.runtime.kv.workers import Hands
from kvboost.runtime.model.support import ModelSupport
from kvboost.runtime.plan.diff import InOrder
from kvboost.runtime.plan.plan import Plan
from kvboost.runtime.plan.planner import NOMINATED, build_plan
from kvboost.runtime.prepare.prepared import Gathered, Prepared, Stages
from kvboost.runtime.repair import STRATEGIES, RepairContext, Selection
from kvboost.types import Handover, MatchQuery, Namespace, Tier


@dataclass(frozen=True, slots=True)
class Preparer:
    """Prepares the prompts of one boosted model."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    segmenter: PromptSegmenter
    cache: ChunkCache
    namespace: Namespace
    support: ModelSupport
    policy: ReusePolicy
    probe_lock: threading.Lock
    costs: Costs
    slabs: SlabPool
    continued: Continued
    hands: Hands = field(default_factory=Hands)

    def prepare(
        self,
        token_ids: Sequence[int],
        new_tokens: int,
        policy: ReusePolicy | None = None,
        controller: Controller | None = None,
        overlap: bool = False,
        stages: Stages | None = None,
    ) -> Prepared:
        """Reuse what can be reused for a prompt of ``N`` tokens; a cache fault means full prefill.

        Parameters
        ----------
        new_tokens
            Tokens that will be decoded: head room of the slab.
        policy
            Instead of the model's own policy.
        controller
            Makes the policy stricter where the audits asked for it; None takes it as it is, to measure it.
        overlap
            Whether the forward pass may begin while K/V from another host still arrive; it may then raise
            :class:`~kvboost.errors.LateFetchError`, and the caller is to go on with :meth:`fall_back`.
        stages
            What was done for the prompt before, to go on with.
        """
        return self.complete(self.gather(token_ids, new_tokens, policy, controller, overlap, stages))

    @torch.no_grad()
    def gather(
        self,
        token_ids: Sequence[int],
        new_tokens: int,
        policy: ReusePolicy | None = None,
        controller: Controller | None = None,
        overlap: bool = False,
        stages: Stages | None = None,
    ) -> Gathered:
        """Do the first part of :meth:`prepare`, which runs nothing of the model and may wait for the cache.

        On any thread: segment, match, plan, fetch and place, re-rotated.
        """
        stages = stages or Stages()
        rules = policy or self.policy
        effective = controller.admit(rules) if controller is not None else EffectivePolicy(rules)
        try:
            return self._gather(token_ids, new_tokens, effective, stages, overlap)
        except KVBoostError as error:
            self._pass_on_input(error)
            return self._without_reuse(token_ids, new_tokens, error, stages)

    def complete(self, gathered: Gathered) -> Prepared:
        """Do the second part of :meth:`prepare`, on the thread that runs the model: choose what to recompute."""
        if not gathered.plan.reuse:
            return self._uncomputed(gathered)
        try:
            return self._complete(gathered)
        except KVBoostError as error:
            self._pass_on_input(error)
            ids = gathered.token_ids.tolist()
            return self._uncomputed(self._without_reuse(ids, gathered.new_tokens, error, gathered.stages))

    def fall_back(self, token_ids: Sequence[int], new_tokens: int, error: KVBoostError) -> Prepared:
        """Warn of a fault of the cache, and return the prompt with nothing reused."""
        return self._uncomputed(self._without_reuse(token_ids, new_tokens, error, Stages()))

    def blank(self, token_ids: Sequence[int], new_tokens: int, declined: str = "") -> Gathered:
        """Return a prompt for which nothing is looked up and nothing may be stored, and why it is declined."""
        plan = Plan(len(token_ids), ())
        plan = plan.noting(declined) if declined else plan
        return replace(self._empty(token_ids, new_tokens, Stages(), plan), stores=False)

    @staticmethod
    def _pass_on_input(error: KVBoostError) -> None:
        """Raise what is the caller's fault. K/V that do not fit their layout are the cache's."""
        if isinstance(error, InputError) and not isinstance(error, TensorError):
            raise error

    def _without_reuse(
        self, token_ids: Sequence[int], new_tokens: int, error: KVBoostError, stages: Stages
    ) -> Gathered:
        self._mend(error)
        warnings.warn(f"full prefill instead of reuse: {error} ({type(error).__name__})", FallbackWarning, stacklevel=3)
        empty = self._empty(token_ids, new_tokens, stages, Plan(len(token_ids), ()))
        return replace(empty, fallback=f"{type(error).__name__}: {error}")

    def _mend(self, error: BaseException | None) -> None:
        """Spare later requests the fault: name a forgotten namespace again, evict a damaged chunk."""
        error = error.__cause__ if isinstance(error, LateFetchError) else error
        with contextlib.suppress(KVBoostError):
            if isinstance(error, UnknownNamespaceError):
                self.cache.open(self.namespace)
            elif isinstance(error, ChecksumError | NonFiniteError) and error.chunk_id is not None:
                if isinstance(error, NonFiniteError):
                    self.costs.counters.add("non_finite_chunks")
                self.cache.evict(self.namespace.key, [error.chunk_id])

    def _gather(
        self, token_ids: Sequence[int], new_tokens: int, effective: EffectivePolicy, stages: Stages, overlap: bool
    ) -> Gathered:
        policy = effective.policy
        own = effective.steers and policy.continuing  # a call with a policy of its own is to borrow as that says
        held = self.continued.find(self.namespace.key, token_ids, policy.tiers) if own else None
        plan = self.costs.weigh(self.plan(token_ids, policy, stages), policy, path_of(self.cache))
        plan = plan if held is None else held.before(plan)
        if not plan.reuse:
            return replace(self._empty(token_ids, new_tokens, stages, plan), effective=effective)
        with stages.measure("fetch"):
            empty = self._empty(token_ids, new_tokens, stages, plan)
            cache = empty.cache
            if held is not None and plan.rests_on:
                held.place(cache)
            handover, missing = self._fetch(plan, cache, overlap)
            if missing:
                plan = plan.without(missing, "evicted between match and fetch")
                plan = plan if Tier.EXACT in self.support.tiers else plan.leading()
            for span in plan.compute:
                cache.clear(span)
        return replace(empty, plan=plan, handover=handover, effective=effective)

    def _fetch(self, plan: Plan, cache: SlabCache, overlap: bool) -> tuple[Handover | None, set[int]]:
        """Place the donors' K/V, or begin to; return how they came and the donors that did not."""
        key, wanted, meter = self.namespace.key, plan.chunk_ids(), self.costs.meter
        if not wanted:
            return Handover.IN_PROCESS, set()
        count = parts_of(self.support.layout.num_layers)
        far = path_of(self.cache) is Handover.FRAMES and meter.is_slow(Handover.FRAMES)
        if overlap and far and count > 1 and isinstance(self.cache, PartSource):
            parts = self.cache.fetch_parts(key, wanted, count)
            return Handover.FRAMES, LayerWiseLoad(plan, self.support, cache, self.hands).begin(meter.timed(parts))
        placer = Placer(plan, self.support, cache, self.hands)
        missing = placer.place(meter.timed(self.cache.fetch(key, wanted)))
        return placer.handover, missing

    def plan(self, token_ids: Sequence[int], policy: ReusePolicy, stages: Stages) -> Plan:
        """Return what the cache would lend to a prompt of ``N`` tokens, whether or not it is worth it.

        Raises what the cache raises.
        """
        with stages.measure("segment"):
            segmentation = self.segmenter.segment(token_ids)
        nominating = NOMINATED & self.support.tiers & set(policy.tiers)
        query = MatchQuery(
            namespace=self.namespace.key,
            token_ids=tuple(token_ids),
            chunks=segmentation.chunks,
            threshold=policy.threshold if nominating else None,
            max_nominees=policy.max_nominees,
            # What another wording has in common with the prompt's cannot be told from its tokens.
            min_shared_tokens=None if Tier.SUBSTITUTE in nominating else policy.min_span,
        )
        with stages.measure("match"):
            matches = self.cache.match(query).matches
        with stages.measure("plan"):
            return build_plan(
                token_ids,
                matches,
                segmentation.sentences,
                policy,
                self.support.tiers,
                self._decode,
                [chunk.span for chunk in segmentation.chunks],
                self.support.sink_tokens,
            )

    def _decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without the one that begins a prompt: it is no fact of the text behind it."""
        begin = self.tokenizer.bos_token_id
        text: str = self.tokenizer.decode([token for token in token_ids if token != begin])
        return text

    def _select(self, plan: Plan, cache: SlabCache, ids: Tensor, policy: ReusePolicy) -> tuple[Selection, float]:
        """Choose the tokens to recompute; return them and the share of the reused tokens that this costs."""
        context = RepairContext(
            model=self.model,
            cache=cache,
            plan=plan,
            token_ids=ids,
            budget_tokens=int(policy.recompute_ratio * plan.borrowed_tokens),
            question_tokens=policy.question_tokens,
            lock=self.probe_lock,
            head_tokens=policy.head_tokens,
        )
        if plan.repairable_tokens == 0 or policy.recompute_ratio == 0.0:
            return context.nothing(), 0.0
        if "deviation" in policy.repair:
            cache.complete()  # it reads the slab beside the model's own passes
        selection = STRATEGIES[policy.repair]().select(context)
        return selection, selection.cost / plan.reused_tokens

    def _complete(self, gathered: Gathered) -> Prepared:
        plan, cache, ids = gathered.plan, gathered.cache, gathered.token_ids
        rules = gathered.effective or EffectivePolicy(self.policy)
        policy = rules.policy_for({piece.tier for piece in plan.reuse})
        with gathered.stages.measure("repair"):
            selection, ratio = self._select(plan, cache, ids, policy)
        gaps = gaps_before_tail(plan, ids.device)
        scattered = torch.cat([gaps, selection.positions]).sort().values
        shifts = policy.shift and len(selection.positions) > 0
        runs = InOrder([run.span for run in plan.runs if run.repairable]) if shifts else None
        cache.set_length(plan.tail_start)
        ready = self._uncomputed(gathered)
        return replace(
            ready,
            plan=plan if selection.declined is None else plan.noting(selection.declined),
            splice=Splice(cache, ids, scattered, plan.tail_start, runs, self.support),
            recomputed=tuple(selection.positions.tolist()),
            recompute_ratio=ratio,
        )

    def _uncomputed(self, gathered: Gathered) -> Prepared:
        """Return a prompt that is computed whole."""
        ids = gathered.token_ids
        nothing = torch.empty(0, dtype=torch.long, device=ids.device)
        return Prepared(
            gathered.plan,
            Splice(gathered.cache, ids, nothing, 0, None, self.support),
            gathered.namespace,
            fallback=gathered.fallback,
            stages=gathered.stages,
            effective=gathered.effective,
            handover=gathered.handover,
            stores=gathered.stores,
        )

    def _empty(self, token_ids: Sequence[int], new_tokens: int, stages: Stages, plan: Plan) -> Gathered:
        """Return a prompt with a slab that nothing was placed in."""
        ids = torch.tensor(token_ids, device=self.model.device)
        cache = self.slabs.take(len(token_ids) + new_tokens + HEAD_ROOM_TOKENS)
        return Gathered(plan, cache, ids, new_tokens, stages, self.namespace.key)
