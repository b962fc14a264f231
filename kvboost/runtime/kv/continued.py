"""What requests were answered from, kept for their own continuation and repetition.

Borrowed K/V are repaired for the question at hand, and K/V behind them depend on that repair. The next turn of a chat,
or the same request once more, goes on from just these: nothing is repaired a second time, and the answer does not
wobble. They are lossy as they were when the request began, so they are lent to nobody else: only a prompt that begins
with the whole prompt of an earlier request continues it.

Sequences form a tree. A turn keeps its own tokens alone and goes on where the turn before it ends; the least recently
used leaf goes first when there is no room. K/V lie in this process, beside the cache and under a bound of their own.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.types import Donor, Span, Tier

_Ids = npt.NDArray[np.int64]


@dataclass(eq=False)
class _Turn:
    """One request's own part of a sequence: tokens ``[start, start + len(ids))`` and their K/V.

    ``keys`` and ``values`` are ``[layers, kv_heads, len(ids), dim]`` and never written to again. ``prompt_tokens``
    counts from the beginning of the sequence; ``rests_on`` are the tiers that lent to it or to what is before it, and
    ``exact_until`` is where the first of them did.
    """

    number: int
    ids: _Ids
    start: int
    keys: Tensor
    values: Tensor
    prompt_tokens: int
    exact_until: int
    rests_on: frozenset[Tier]
    before: _Turn | None
    used_s: float
    after: list[_Turn] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def line(self, end: int) -> Iterator[tuple[_Turn, int]]:
        """Yield this turn and those before it, each with the position up to which it is part of the sequence."""
        turn: _Turn | None = self
        while turn is not None:
            yield turn, end
            end, turn = turn.start, turn.before


@dataclass(frozen=True, slots=True)
class Held:
    """The first ``tokens`` tokens of a sequence; :meth:`Continued.find` returns it.

    Attributes
    ----------
    exact_until
        The K/V before this position are those of an ordinary prefill.
    rests_on
        The approximate tiers that the rest goes back to.
    """

    tokens: int
    exact_until: int
    rests_on: frozenset[Tier]
    _turn: _Turn

    def place(self, cache: SlabCache) -> None:
        """Copy the K/V to the positions ``[0, tokens)`` of the first row of ``cache``."""
        for turn, end in self._turn.line(self.tokens):
            target, count = slice(turn.start, end), end - turn.start
            cache.key_slab[:, 0, :, target] = turn.keys[:, :, :count]
            cache.value_slab[:, 0, :, target] = turn.values[:, :, :count]

    def before(self, plan: Plan) -> Plan:
        """Return ``plan`` with these tokens instead of what it reuses of them, unless that is lossless and as long."""
        if sum(len(piece.target) for piece in plan.leading().lossless_only().reuse) >= self.tokens:
            return plan
        parts = [turn.ids[: end - turn.start] for turn, end in self._turn.line(self.tokens)]
        donor = Donor(-self._turn.number, tuple(np.concatenate(parts[::-1]).tolist()), 0, b"", b"", False)
        exact = min(self.exact_until, self.tokens)
        spans = [(Tier.PREFIX, 0, exact), (Tier.CONTINUED, exact, self.tokens)]
        own = [ReuseSpan(Span(start, end), donor, start, tier) for tier, start, end in spans if start < end]
        rest = [part for piece in plan.reuse for part in piece.outside([Span(0, self.tokens)])]
        return Plan(plan.num_tokens, (*own, *rest), plan.declined, self.rests_on)


class Continued:
    """Sequences that may be continued, of one namespace at a time. Safe to use from several threads.

    Parameters
    ----------
    max_bytes
        Bound on K/V; 0 keeps nothing.
    ttl_s
        Seconds after which a sequence that was not used is forgotten.
    """

    def __init__(self, max_bytes: int, ttl_s: float) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._namespace = ""
        self._turns: dict[int, _Turn] = {}
        self._numbers = itertools.count(1)
        self._bytes = 0

    @property
    def stored_bytes(self) -> int:
        """Bytes of K/V that are kept."""
        return self._bytes

    def find(self, namespace: str, token_ids: Sequence[int], tiers: Collection[Tier]) -> Held | None:
        """Return what a prompt continues, all but its last token at most; None where it continues nothing.

        Parameters
        ----------
        tiers
            Those that are allowed: what rests on another one has ended.
        """
        ids = np.fromiter(token_ids, np.int64, len(token_ids))
        with self._lock:
            self._forget_old()
            if namespace != self._namespace or not self._turns:
                return None
            found = max(_matches(self._roots(), ids), key=lambda pair: pair[1], default=None)
            if found is None:
                return None
            turn, tokens = found
            if not turn.rests_on <= set(tiers):
                return None
            now_s = time.monotonic()
            for each, _ in turn.line(tokens):
                each.used_s = now_s
            return Held(min(tokens, len(ids) - 1), turn.exact_until, turn.rests_on, turn)

    def keep(self, namespace: str, token_ids: Sequence[int], keys: Tensor, values: Tensor, plan: Plan) -> None:
        """Keep what a request was answered from, if any of it was borrowed.

        Parameters
        ----------
        token_ids
            Prompt and answer, as far as they have K/V: ``M`` tokens.
        keys, values
            ``[layers, kv_heads, M, dim]``; copied.
        plan
            What the prompt reused.
        """
        borrowed = plan.approximate_from
        if borrowed is None or plan.substitute_from is not None or self._max_bytes == 0:
            return
        count = len(token_ids)
        whole = np.fromiter(token_ids, np.int64, count)
        with self._lock:
            before, start = self._continues(namespace, plan)
            known = namespace == self._namespace and any(n == count for _, n in _matches(self._roots(), whole))
        if known or start >= count:
            return  # the same request, answered in the same way
        own = [
            each[:, :, start:count].to("cpu", copy=True, memory_format=torch.contiguous_format)
            for each in (keys, values)
        ]
        tiers = {piece.tier for piece in plan.reuse} - {Tier.PREFIX, Tier.CONTINUED}
        rests_on = plan.rests_on | tiers
        number, now_s = next(self._numbers), time.monotonic()
        turn = _Turn(number, whole[start:], start, own[0], own[1], plan.num_tokens, borrowed, rests_on, before, now_s)
        with self._lock:
            self._add(namespace, turn)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._turns.clear()
            self._bytes = 0

    def _roots(self) -> list[_Turn]:
        return [turn for turn in self._turns.values() if turn.before is None]

    def _continues(self, namespace: str, plan: Plan) -> tuple[_Turn | None, int]:
        """Return the turn that a plan goes on from, and where; from nothing, at 0, where that turn is gone."""
        donors = [piece for piece in plan.reuse if piece.tier is Tier.CONTINUED]
        turn = self._turns.get(-donors[-1].donor.chunk_id) if donors and namespace == self._namespace else None
        return (turn, donors[-1].target.end) if turn is not None else (None, 0)

    def _add(self, namespace: str, turn: _Turn) -> None:
        if namespace != self._namespace:
            self._turns.clear()
            self._bytes, self._namespace = 0, namespace
        if turn.before is not None and turn.before.number not in self._turns:
            return  # what it goes on from has just been forgotten
        if turn.nbytes > self._max_bytes:
            return
        if turn.before is not None:
            turn.before.after.append(turn)
        self._turns[turn.number] = turn
        self._bytes += turn.nbytes
        kept = {each for each, _ in turn.line(turn.end)}
        while self._bytes > self._max_bytes:
            leaves = [each for each in self._turns.values() if not each.after and each not in kept]
            self._drop(min(leaves, key=lambda each: each.used_s, default=turn))

    def _forget_old(self) -> None:
        oldest_s = time.monotonic() - self._ttl_s
        while old := [each for each in self._turns.values() if not each.after and each.used_s < oldest_s]:
            for turn in old:
                self._drop(turn)

    def _drop(self, turn: _Turn) -> None:
        del self._turns[turn.number]
        self._bytes -= turn.nbytes
        if turn.before is not None:
            turn.before.after.remove(turn)


def _matches(turns: Sequence[_Turn], ids: _Ids) -> Iterator[tuple[_Turn, int]]:
    """Yield turns whose whole prompt ``ids`` begin with, and how many tokens are equal."""
    waiting = list(turns)
    while waiting:
        turn = waiting.pop()
        ours = ids[turn.start : turn.end]
        equal = turn.ids[: len(ours)] == ours
        tokens = turn.start + (int(equal.argmin()) if not equal.all() else len(ours))
        if tokens >= turn.prompt_tokens:
            yield turn, tokens
        waiting += [child for child in turn.after if child.start <= tokens]
