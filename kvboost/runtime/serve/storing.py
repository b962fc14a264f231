"""What a request computed, on its way to the cache and to its own continuation."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from kvboost.runtime.kv.harvest import new_chunks
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.model.support import APPROXIMATE
from kvboost.runtime.plan.plan import Plan
from kvboost.runtime.prepare.prepare import Preparer
from kvboost.runtime.serve.writer import Writer
from kvboost.types import PutReceipt, PutRequest


@dataclass(frozen=True, slots=True)
class Part:
    """Where a row's K/V lie.

    Attributes
    ----------
    index, padding
        The row of ``cache``, and the positions of padding before its first token.
    shared
        Whether others read ``cache`` too; otherwise its memory goes to a later request.
    caller_owns
        Whether the caller of ``generate()`` is to own ``cache`` and may change it: its chunks are then cut out at once.
    """

    cache: SlabCache
    index: int = 0
    padding: int = 0
    shared: bool = False
    caller_owns: bool = False


class Storer:
    """Stores for one boosted model, in the background."""

    def __init__(self, preparer: Preparer, writer: Writer) -> None:
        self._segmenter = preparer.segmenter
        self._support = preparer.support
        self._continued = preparer.continued
        self._slabs = preparer.slabs
        self._counters = preparer.costs.counters
        self._prefix_only = APPROXIMATE.isdisjoint(preparer.support.tiers & set(preparer.policy.tiers))
        self._writer = writer

    def store(self, plan: Plan, ids: list[int], part: Part, namespace: str, continues: bool) -> Future[PutReceipt]:
        """Offer what a row computed to the cache.

        Parameters
        ----------
        ids
            Prompt and answer.
        namespace
            Where the K/V belong.
        continues
            Whether a later turn may go on from the row's K/V.
        """
        cache = part.cache

        def build() -> PutRequest:
            count = min(len(ids), cache.get_seq_length() - part.padding)
            positions = slice(part.padding, part.padding + count)
            keys, values = (each[:, part.index, :, positions] for each in cache.contents())
            harvest = new_chunks(ids[:count], plan, self._segmenter, keys, values, self._support.layout)
            if harvest.non_finite:
                self._counters.add("non_finite_chunks", harvest.non_finite)
            elif continues:
                self._continued.keep(namespace, ids[:count], keys, values, plan)
            if not (part.shared or part.caller_owns or harvest.non_finite):  # such memory goes to nobody
                self._slabs.give(cache)
            return PutRequest(namespace, tuple(ids[:count]), harvest.chunks, self._prefix_only)

        return self._writer.submit(build, part.caller_owns, ids[: plan.num_tokens])
