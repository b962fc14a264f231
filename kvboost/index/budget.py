"""The byte budget over all namespaces: who holds how much, and who pays when there is no room.

Whoever holds most pays, which gives every namespace an equal share of what is scarce and leaves those that hold less
alone (max-min fairness). One that nobody used while a whole budget of bytes came in pays before all others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Protocol


class Holder(Protocol):
    """What holds bytes of the budget."""

    def evict(self, nbytes: int, spare: Container[int]) -> int:
        """Let go of ``nbytes`` or a little more, of no chunk in ``spare``; return how many, which are given back."""
        ...


@dataclass(slots=True)
class _Account:
    used_bytes: int = 0
    last_used_at: int = 0


class Budget:
    """Never more than ``max_bytes`` are taken. Safe to use from several threads; calls holders without its lock."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()
        self._accounts: dict[Holder, _Account] = {}
        self._taken_ever = 0  # the clock: bytes that were ever taken

    def touch(self, holder: Holder) -> None:
        """Note that somebody uses what ``holder`` holds."""
        with self._lock:
            account = self._accounts.get(holder)
            if account is not None:
                account.last_used_at = self._taken_ever

    def take(self, holder: Holder, nbytes: int, own: Callable[[], Container[int]]) -> bool:
        """Take ``nbytes`` for ``holder``; evict for them what is needed. Return False if they are not to be had.

        ``own`` is asked, once there is no room, for the chunks that may not be evicted for this. Where ``holder``
        holds most, only its own other chunks are.
        """
        spent: set[Holder] = set()
        spare: Container[int] | None = None
        while True:
            with self._lock:
                missing = self.used_bytes + nbytes - self.max_bytes
                if missing <= 0:
                    self._book(holder, nbytes)
                    return True
                payer = self._payer(holder, nbytes, spent)
            if payer is None:
                return False
            spare = own() if spare is None else spare
            if not payer.evict(missing, spare):
                spent.add(payer)

    def give(self, holder: Holder, nbytes: int) -> None:
        """Give bytes back."""
        with self._lock:
            self.used_bytes -= nbytes
            account = self._accounts[holder]
            account.used_bytes -= nbytes
            if not account.used_bytes:
                del self._accounts[holder]

    def _book(self, holder: Holder, nbytes: int) -> None:
        account = self._accounts.setdefault(holder, _Account())
        self.used_bytes += nbytes
        self._taken_ever += nbytes
        account.used_bytes += nbytes
        account.last_used_at = self._taken_ever

    def _payer(self, holder: Holder, nbytes: int, spent: set[Holder]) -> Holder | None:
        """Return who is to evict: one long unused, else whoever would hold most, ``holder`` first among equals."""
        accounts = self._accounts
        own = nbytes + (accounts[holder].used_bytes if holder in accounts else 0)

        def claim(each: Holder) -> tuple[bool, int, bool]:
            account = accounts[each]
            idle = self._taken_ever - account.last_used_at > self.max_bytes
            return (idle, own, True) if each is holder else (idle, account.used_bytes, False)

        best = max((each for each in accounts if each not in spent), key=claim, default=None)
        if best is None or best is holder:
            return best
        idle, used, _ = claim(best)
        return best if idle or used > own else None
