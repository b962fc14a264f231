"""One put: each of its chunks is judged, given room and memory, copied, checked and filed."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvboost.checksum import checksum
from kvboost.errors import NonFiniteError
from kvboost.index.budget import Budget
from kvboost.index.finite import all_finite
from kvboost.index.hashes import SequenceHasher
from kvboost.index.judging import variants_of
from kvboost.index.lookup import walk
from kvboost.index.nominate import Nominator
from kvboost.index.offers import Offer, check_offers
from kvboost.index.payloads import PayloadAllocator, copied_in
from kvboost.index.room import Room
from kvboost.index.table import NamespaceTable, Verdict, index_bytes
from kvboost.index.vacate import Vacating
from kvboost.types import PutReceipt, PutRequest

TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class Stocks:
    """What puts of all namespaces share."""

    budget: Budget
    allocator: PayloadAllocator
    nominator: Nominator
    max_variants: int
    vacating: Vacating


@dataclass(slots=True)
class Putting:
    """Stores the chunks of one sequence, head first.

    They never push out one another, nor what is stored already of the sequence before them: where nothing else may
    go, the rest of the sequence is left out.
    """

    room: Room
    request: PutRequest
    stocks: Stocks
    _hasher: SequenceHasher = field(init=False)
    _stored: set[int] = field(default_factory=set)
    _own: set[int] | None = None
    _full: bool = False

    def run(self) -> PutReceipt:
        """Store what is wanted; every chunk is checked before the first is stored.

        Raises
        ------
        NonFiniteError
            At the first chunk whose K/V are not finite; those before it are kept.
        """
        self._hasher = SequenceHasher(self.request.token_ids)
        counts = dict.fromkeys(("stored", "duplicate", "over_variants", TOO_LARGE), 0)
        for number, offer in enumerate(check_offers(self.room.namespace, self.request, self._hasher)):
            counts[self._put_one(number, offer)] += 1
        return PutReceipt(**counts)

    def _put_one(self, number: int, offer: Offer) -> str:
        """Store one chunk, or name why not. The copy is made between two looks at the table, outside the lock."""
        with self.room.table() as table:
            verdict, _ = self._judge(table, offer)
        if verdict in (Verdict.DUPLICATE, Verdict.OVER_VARIANTS):
            return verdict
        budget, index = self.stocks.budget, index_bytes(len(offer.token_ids), self.stocks.nominator.vector_dim)
        if self._full or offer.nbytes + index > budget.max_bytes:
            return TOO_LARGE
        if not budget.take(self.room, offer.nbytes + index, self._kin):
            self._full = True
            return TOO_LARGE
        filed = False
        try:
            payload = self._copied(number, offer)
            verdict, chunk_id, vector_id = self.room.add(offer, payload, checksum(payload), index, self._judge)
            filed = chunk_id != 0
        finally:
            if not filed:
                budget.give(self.room, offer.nbytes + index)
        if not filed:
            return verdict
        (self._stored if self._own is None else self._own).add(chunk_id)
        if vector_id is not None:
            self.stocks.nominator.submit(self.room, vector_id, offer.chunk.text)
        return "stored"

    def _copied(self, number: int, offer: Offer) -> memoryview:
        """Return the chunk's bytes in the cache's memory, where nobody changes them after they were looked at."""
        namespace, key = self.room.namespace, self.room.key
        make_room = self.stocks.vacating.for_put(key, offer.nbytes)
        payload = copied_in(self.stocks.allocator, key, offer.chunk.payload, make_room)
        if not all_finite(payload, namespace.layout.dtype):
            with self.room.table() as table:
                table.non_finite_chunks += 1
            raise NonFiniteError(
                f"chunks[{number}].payload for namespace {key} is infinite or not a number somewhere; compute it again"
            )
        return payload

    def _judge(self, table: NamespaceTable, offer: Offer) -> tuple[Verdict, int | None]:
        history = (offer.parent_hash, offer.prefix_hash)
        most = variants_of(self.request, self.stocks.max_variants)
        return table.judge(
            history, offer.content, len(offer.token_ids), offer.chunk.exact, most, lambda: self._kin_in(table)
        )

    def _kin(self) -> set[int]:
        with self.room.table() as table:
            return self._kin_in(table)

    def _kin_in(self, table: NamespaceTable) -> set[int]:
        """Return the ids of this sequence's chunks, those stored before included."""
        if self._own is None:
            before = walk(table, self._hasher, self.request.token_ids, 0)
            self._own = self._stored | {match.donor.chunk_id for match in before}
        return self._own
