"""K/V that arrive layers first while the model already runs.

From a cache on another host the first layers of all chunks come before the next of any. Once they are there the forward
pass can begin; each layer of the slab waits until its own K/V are in place. A chunk's checksum is known only with its
last layers, so the last part waits for the end of the whole transfer, and what fails until then ends the pass.

Layers come in a few parts, not one by one: every frame costs the interpreter as much as some 50 KB of it on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvboost.errors import DataLossError, KVBoostError, LateFetchError
from kvboost.runtime.kv.codec import unpack
from kvboost.runtime.kv.placing import angles_of_plan, check_last_layer, place_layers
from kvboost.runtime.kv.slab import LayerGate, SlabCache
from kvboost.runtime.kv.workers import Hands
from kvboost.runtime.model.support import ModelSupport
from kvboost.runtime.plan.plan import Plan
from kvboost.types import ChunkPart

MOST_PARTS = 4


def parts_of(layers: int) -> int:
    """Return into how many equal parts ``layers`` layers are cut: as many as divide them, four at most."""
    return next(parts for parts in range(min(MOST_PARTS, layers), 0, -1) if layers % parts == 0)


class LayerWiseLoad:
    """Places the K/V of one plan's donors into a slab, part by part, in the background."""

    def __init__(self, plan: Plan, support: ModelSupport, cache: SlabCache, hands: Hands) -> None:
        self._support = support
        self._cache = cache
        self._hands = hands
        self._gate = LayerGate()
        self._wanted = plan.by_donor()
        self._angles = angles_of_plan(plan, support, cache.key_slab.device)
        self._parts = parts_of(support.layout.num_layers)
        self._depth = support.layout.num_layers // self._parts
        self._layout = replace(support.layout, num_layers=self._depth)

    def begin(self, parts: Iterator[ChunkPart]) -> set[int]:
        """Place the first of ``parts_of(layers)`` parts; return the donors that do not come.

        The rest goes on in the background.

        Raises
        ------
        KVBoostError
            What the transfer raises before the first part is whole.
        """
        missing = set(self._wanted)
        following: ChunkPart | None = None
        for part in parts:
            if part.part > 0:
                following = part
                break
            self._place(part)
            missing.discard(part.chunk_id)
        self._cache.set_gate(self._gate)
        if following is None:
            self._gate.open(self._support.layout.num_layers)
        else:
            self._gate.open(self._depth)
            expected = set(self._wanted) - missing
            self._hands.begin(lambda: self._go_on(following, parts, len(expected)))
        return missing

    def _go_on(self, following: ChunkPart, parts: Iterator[ChunkPart], chunks: int) -> None:
        """Place all further parts; one is whole when every chunk has sent its share of it."""
        try:
            seen = 0
            part: ChunkPart | None = following
            while part is not None:
                self._place(part)
                seen += 1
                if seen % chunks == 0 and part.part + 1 < self._parts:
                    self._gate.open((part.part + 1) * self._depth)
                part = next(parts, None)
            if seen != chunks * (self._parts - 1):
                raise DataLossError("K/V of some layers did not come; fetch again")
            self._gate.open(self._parts * self._depth)
        except KVBoostError as error:
            self._gate.fail(LateFetchError(f"{error} ({type(error).__name__}, after the pass had begun)"), error)
        # Whoever waits at the gate must hear of it, whatever it is.
        except BaseException as error:
            self._gate.fail(LateFetchError(f"placing K/V failed: {type(error).__name__}"), error)
            raise

    def _place(self, part: ChunkPart) -> None:
        pieces = self._wanted.get(part.chunk_id)
        if pieces is None:
            raise DataLossError(f"chunk {part.chunk_id} came without being asked for; fetch again")
        payload = memoryview(part.payload).cast("B")
        keys, values = unpack(payload, self._layout, len(pieces[0].donor.token_ids))
        for piece in pieces:
            place_layers(piece, part.part * self._depth, keys, values, self._support, self._cache, self._angles)
        if part.part == self._parts - 1:
            check_last_layer(part.chunk_id, keys, values)
