"""A loaded model, and sessions of it with a cache of their own: what every eval measures on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from evals._frozen import FrozenCache
from kvboost.api import boost, engine_of, unboost
from kvboost.build import build_segmenter
from kvboost.config import Config, SegmentConfig
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.protocols import Embedder
from kvboost.reuse import ReuseReport
from kvboost.runtime.serve.engine import Engine
from kvboost.runtime.tools.score import FullPrefill, Loss, full_prefill, loss

SESSION_BYTES = 8 * 1024**3
EMBEDDING_TIMEOUT_S = 120.0
QUICK_S = 95.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One prompt under one policy, against full prefill.

    Attributes
    ----------
    first_divergence
        First answer position at which greedy decoding would leave full prefill's answer; None if it never does.
    """

    loss: Loss
    first_divergence: int | None
    report: ReuseReport

    @property
    def reuse_share(self) -> float:
        """Prompt tokens whose K/V came from the cache and were not recomputed, as a share."""
        return self.report.reused_tokens / self.report.prompt_tokens


class Session:
    """A boosted model over a fresh cache.

    Only :meth:`store`, :meth:`chat` and :meth:`measure_and_store` change what is cached.
    """

    def __init__(self, engine: Engine, cache: FrozenCache, flush: Callable[[], object]) -> None:
        self.engine = engine
        self._cache = cache
        self._flush = flush

    def store(self, token_ids: Sequence[int], policy: ReusePolicy | None = None) -> ReuseReport:
        """Serve an ordinary request and keep its K/V, embedded, for later ones."""
        return self.chat(token_ids, 1, policy)[1]

    def chat(
        self, token_ids: Sequence[int], answer_tokens: int, policy: ReusePolicy | None = None
    ) -> tuple[tuple[int, ...], ReuseReport]:
        """Answer greedily, keep the K/V of prompt and answer, and return the answer's ids."""
        with self._cache.thawed():
            answer = self.answer(token_ids, answer_tokens, policy)
            self.engine.writer.flush(EMBEDDING_TIMEOUT_S)
            self._flush()
        return answer

    def answer(
        self, token_ids: Sequence[int], answer_tokens: int, policy: ReusePolicy | None = None
    ) -> tuple[tuple[int, ...], ReuseReport]:
        """Answer greedily with reuse; nothing new is cached."""
        result, report = self.engine.generate(
            self._tensor(token_ids), policy=policy, max_new_tokens=answer_tokens, do_sample=False
        )
        self.engine.writer.flush(EMBEDDING_TIMEOUT_S)
        return tuple(result[0, len(token_ids) :].tolist()), report

    def full(self, token_ids: Sequence[int], answer_tokens: int) -> FullPrefill:
        """Answer greedily without reuse."""
        return full_prefill(self.engine, token_ids, answer_tokens)

    @torch.no_grad()
    def measure(self, token_ids: Sequence[int], full: FullPrefill, policy: ReusePolicy | None) -> Measurement:
        """Serve the prompt with reuse through ``generate()``, then force full prefill's answer through its cache."""
        result, report = self.engine.generate(
            self._tensor(token_ids),
            policy=policy,
            max_new_tokens=1,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = [result.logits[0].float()]
        if len(full.answer_ids) > 1:
            forced = self._tensor(full.answer_ids[:-1])
            positions = torch.arange(len(token_ids), len(token_ids) + forced.shape[1], device=forced.device)[None]
            output = self.engine.model(input_ids=forced, position_ids=positions, cache=result.cache, use_cache=True)
            logits.append(output.logits[0].float())
        reuse = torch.cat(logits)
        differs = (reuse.argmax(-1) != full.logits.argmax(-1)).nonzero()
        return Measurement(loss(full.logits, reuse), int(differs[0]) if len(differs) else None, report)

    def measure_and_store(self, token_ids: Sequence[int], full: FullPrefill, policy: ReusePolicy) -> Measurement:
        """As :meth:`measure`, and keep the prompt's K/V, embedded, for later ones."""
        with self._cache.thawed():
            measured = self.measure(token_ids, full, policy)
            self.engine.writer.flush(EMBEDDING_TIMEOUT_S)
            self._flush()
        return measured

    def _tensor(self, token_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(token_ids)], device=self.engine.model.device)


@dataclass(frozen=True, slots=True)
class Bench:
    """What an eval has to work with; ``config`` is what the user's configuration and arguments say."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    config: Config
    embedder: Embedder | None

    @property
    def policy(self) -> ReusePolicy:
        """The configured policy, but what is measured must not depend on the machine's speed or on what ran before.

        So there are no audits, which would change it between two measurements, no hit is declined for its cost, and no
        prompt goes on from what was measured before.
        """
        return replace(self.config.policy, audit_rate=0.0, worth_it=False, continuing=False)

    def namespace(self) -> str:
        """Return the key that the model's K/V are filed under."""
        with self.session() as session:
            return session.engine.namespace.key

    @contextmanager
    def session(
        self,
        segment: SegmentConfig | None = None,
        model: PreTrainedModel | None = None,
        policy: ReusePolicy | None = None,
    ) -> Iterator[Session]:
        """Give the model an empty cache, which is gone afterwards; ``model`` is another module over its weights."""
        model = self.model if model is None else model
        cache = LocalCache(SESSION_BYTES, self.embedder, self.config.cache.max_variants)
        frozen = FrozenCache(cache)
        segmenter = build_segmenter(segment or self.config.segment, self.config.embedder, self.tokenizer)
        boost(model, self.tokenizer, frozen, policy or self.policy, config=self.config, segmenter=segmenter)
        try:
            yield Session(engine_of(model), frozen, lambda: cache.flush(EMBEDDING_TIMEOUT_S))
        finally:
            unboost(model)
            cache.close()


class Deadline:
    """When a quick run stops starting new prompts, so that it ends in time on a slow machine too."""

    def __init__(self, quick: bool) -> None:
        self._end_s = time.monotonic() + QUICK_S if quick else None
        self.stopped = False

    def passed(self, ahead_s: float = 0.0) -> bool:
        """Return whether time is up, or will be in ``ahead_s``; kept in ``stopped``, which belongs into the result."""
        self.stopped = self.stopped or (self._end_s is not None and time.monotonic() + ahead_s > self._end_s)
        return self.stopped
