"""One item under every policy: an answer, and the choice between both values where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from transformers import PreTrainedTokenizerBase

from evals._bench import Session
from evals._documents import Document
from evals._prompts import prompt
from evals._stale_items import Item
from evals._stale_policies import Case
from evals._stale_score import Verdict, judge
from kvboost.runtime.kv.slab import HEAD_ROOM_TOKENS, SlabCache
from kvboost.runtime.plan.plan import Plan
from kvboost.runtime.serve.engine import Engine
from kvboost.types import MatchQuery, Tier

FIRST_QUESTION = {"en": "What is this document about?", "zh": "这篇文章讲的是什么？"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one item under one policy.

    Attributes
    ----------
    answer
        Without the beginning that was given.
    log_odds
        Of the new value against the old one, in nats, where the two part after the given beginning of an answer.
    nominated
        Whether an embedding nominated the old chunk for the changed one.
    followed
        Whether exact-tier tokens after the edit were reused: they have attended to the old value.
    """

    case: str
    item: Item
    answer: str
    verdict: Verdict
    log_odds: float
    nominated: bool
    followed: bool
    reuse_share: float


class Prober:
    """Asks one model.

    Parameters
    ----------
    begin
        Whether the answers are begun for the model, so that it has but to go on with the value.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: PreTrainedTokenizerBase,
        cases: Sequence[Case],
        answer_tokens: int,
        begin: bool = True,
    ) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._cases = cases
        self._answer_tokens = answer_tokens
        self._begin = begin

    @torch.no_grad()
    def ask(self, item: Item) -> list[Reply]:
        """Serve the old version with a neutral question into an empty cache, then ask about the new one."""
        engine = self._session.engine
        preparer = engine.preparer
        engine.cache.drop(engine.namespace.key)
        engine.cache.open(engine.namespace)
        old = self._ids(item.old_document, FIRST_QUESTION[item.language])
        new = self._ids(item.new_document, item.question)
        self._session.store(old)
        edit_at = _parting(old, new)
        prepared = [case.preparer(preparer).prepare(new, 0, case.policy) for case in self._cases]
        for each in prepared:
            each.splice.run(self._session.engine.model, len(new) - 1)
        begun = [*new, *(self._tokens(item.prefix) if self._begin else ())]
        spare = len(begun) - len(new) + self._answer_tokens
        cache = _joined(self._session.engine, [each.splice.cache for each in prepared], len(new), spare)
        answers = self._answers(begun, cache)
        cache.set_length(len(new) - 1)
        log_odds = self._log_odds(new, cache, item)
        nominated = self._nominated(new, edit_at)
        return [
            Reply(
                case=case.name,
                item=item,
                answer=answer,
                verdict=judge(answer, item.old_forms, item.new_forms),
                log_odds=odds,
                nominated=nominated,
                followed=_followed(each.plan, edit_at),
                reuse_share=each.report(0.0).reused_tokens / len(new),
            )
            for case, each, answer, odds in zip(self._cases, prepared, answers, log_odds, strict=True)
        ]

    def _ids(self, document: str, question: str) -> list[int]:
        return prompt(self._tokenizer, [Document("", document)], question)

    def _answers(self, ids: Sequence[int], cache: SlabCache) -> list[str]:
        """Answer greedily under every policy at once, one row each."""
        rows = torch.tensor([list(ids)] * len(self._cases), device=self._session.engine.model.device)
        result, _ = self._session.engine.run_plain(
            rows,
            attention_mask=torch.ones_like(rows),
            cache=cache,
            max_new_tokens=self._answer_tokens,
            do_sample=False,
        )
        return [self._tokenizer.decode(row, skip_special_tokens=True) for row in result[:, len(ids) :]]

    def _log_odds(self, ids: Sequence[int], cache: SlabCache, item: Item) -> list[float]:
        old, new = (self._forced(item, forms[0]) for forms in (item.old_forms, item.new_forms))
        shared = old[: _parting(old, new)]
        rows = torch.tensor([[ids[-1], *shared]] * len(self._cases), device=self._session.engine.model.device)
        positions = torch.arange(len(ids) - 1, len(ids) + len(shared), device=rows.device)
        output = self._session.engine.model(
            input_ids=rows, position_ids=positions.expand(len(rows), -1), cache=cache, use_cache=True
        )
        logits = output.logits[:, -1].float()
        odds: list[float] = (logits[:, new[len(shared)]] - logits[:, old[len(shared)]]).tolist()
        return odds

    def _forced(self, item: Item, value: str) -> list[int]:
        # The full stop keeps one value from being the beginning of the other.
        return self._tokens(f"{item.prefix}{item.space}{value}.")

    def _tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _nominated(self, ids: Sequence[int], edit_at: int) -> bool:
        engine = self._session.engine
        policy = next(case.policy for case in self._cases if Tier.SIMILAR in case.policy.tiers)
        query = MatchQuery(
            namespace=engine.namespace.key,
            token_ids=tuple(ids),
            chunks=engine.preparer.segmenter.segment(ids).chunks,
            threshold=policy.threshold,
            max_nominees=policy.max_nominees,
        )
        matches = engine.cache.match(query).matches
        return any(m.tier is Tier.SIMILAR and m.target.start <= edit_at < m.target.end for m in matches)


def _parting(left: Sequence[int], right: Sequence[int]) -> int:
    """Return where two sequences first differ."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _joined(engine: Engine, caches: Sequence[SlabCache], tokens: int, spare: int) -> SlabCache:
    """Return one cache with a row for each of ``caches``: all prompt tokens but the last, and room for ``spare``."""
    layout = engine.support.layout
    capacity = tokens + spare + HEAD_ROOM_TOKENS
    joined = SlabCache(layout, capacity, engine.model.device, len(caches))
    for row, cache in enumerate(caches):
        joined.key_slab[:, row, :, : tokens - 1] = cache.key_slab[:, 0, :, : tokens - 1]
        joined.value_slab[:, row, :, : tokens - 1] = cache.value_slab[:, 0, :, : tokens - 1]
    joined.set_length(tokens - 1)
    return joined


def _followed(plan: Plan, edit_at: int) -> bool:
    return any(piece.tier is Tier.EXACT and piece.target.start > edit_at for piece in plan.reuse)
