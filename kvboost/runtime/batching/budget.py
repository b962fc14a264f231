"""Bytes of K/V that the requests under way may take together."""

from __future__ import annotations

import torch

from kvboost.errors import InputError
from kvboost.runtime.batching.request import BatchRequest
from kvboost.runtime.kv.slab import HEAD_ROOM_TOKENS
from kvboost.runtime.model.machine import available_bytes
from kvboost.types import KVLayout

SHARE_OF_FREE = 0.5
"""What is taken of the memory that is free when the model has been loaded: passes need room for themselves."""


class ByteBudget:
    """Counts a request by the longest that it may become: prompt, whole answer, and head room.

    Parameters
    ----------
    max_bytes
        Of all requests under way together.
    token_bytes
        K/V of one token over all layers.
    """

    def __init__(self, max_bytes: int, token_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._token_bytes = token_bytes
        self._taken = 0

    @classmethod
    def of(cls, layout: KVLayout, device: torch.device, max_bytes: int) -> ByteBudget:
        """Return the budget of a model; for 0 bytes half of what is free now."""
        return cls(max_bytes or int(SHARE_OF_FREE * available_bytes(device)), layout.token_bytes)

    @property
    def taken(self) -> int:
        """Bytes of the requests under way."""
        return self._taken

    def needed(self, request: BatchRequest) -> int:
        """Return the bytes that ``request`` may come to."""
        return (len(request.token_ids) + request.max_new_tokens + HEAD_ROOM_TOKENS) * self._token_bytes

    def check(self, request: BatchRequest) -> None:
        """Raise :class:`InputError` for a request that would not fit alone: to try it again would be no use."""
        needed = self.needed(request)
        if needed > self.max_bytes:
            raise InputError(
                f"a prompt of {len(request.token_ids)} tokens and an answer of up to {request.max_new_tokens} need "
                f"{_mib(needed)} of K/V, and runtime.max_batch_bytes holds {_mib(self.max_bytes)}; shorten the "
                "prompt, ask for fewer new tokens, or raise it"
            )

    def has_room(self, request: BatchRequest) -> bool:
        """Return whether ``request`` fits beside those under way."""
        return self._taken + self.needed(request) <= self.max_bytes

    def take(self, request: BatchRequest) -> None:
        """Count ``request`` as under way."""
        self._taken += self.needed(request)

    def give(self, request: BatchRequest) -> None:
        """Count it no longer."""
        self._taken -= self.needed(request)


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"
