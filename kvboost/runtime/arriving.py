"""K/V that arrive layer by layer while the model already runs.

From a cache on another host the first layer of all chunks comes before the second of any. Once it is there the forward
pass can begin; each layer of the slab waits until its own K/V are in place. A chunk's checksum is known only with its
last layer, so the last layer waits for the end of the whole transfer, and what fails until then ends the pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvboost.errors import DataLossError, KVBoostError, LateFetchError
from kvboost.runtime.codec import unpack
from kvboost.runtime.hands import Hands
from kvboost.runtime.placing import angles_of_plan, place_layer
from kvboost.runtime.plan import Plan, ReuseSpan
from kvboost.runtime.slab import LayerGate, SlabCache
from kvboost.runtime.support import ModelSupport
from kvboost.types import ChunkPart


class Arrival:
    """Places the K/V of one plan's donors into a slab, layer by layer, in the background."""

    def __init__(self, plan: Plan, support: ModelSupport, cache: SlabCache, hands: Hands) -> None:
        self._support = support
        self._cache = cache
        self._hands = hands
        self._gate = LayerGate()
        self._wanted: dict[int, list[ReuseSpan]] = {}
        for piece in plan.reuse:
            self._wanted.setdefault(piece.donor.chunk_id, []).append(piece)
        self._angles = angles_of_plan(plan, support, cache.key_slab.device)
        self._layout = replace(support.layout, num_layers=1)

    def begin(self, parts: Iterator[ChunkPart]) -> set[int]:
        """Place the first layer; return the donors that do not come. The rest goes on in the background.

        Raises
        ------
        KVBoostError
            What the transfer raises before the first layer is whole.
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
            self._gate.open(1)
            expected = set(self._wanted) - missing
            self._hands.begin(lambda: self._go_on(following, parts, len(expected)))
        return missing

    def _go_on(self, following: ChunkPart, parts: Iterator[ChunkPart], chunks: int) -> None:
        """Place all further layers; a layer is whole when every chunk has sent its part of it."""
        layers = self._support.layout.num_layers
        try:
            seen = 0
            part: ChunkPart | None = following
            while part is not None:
                self._place(part)
                seen += 1
                if seen % chunks == 0 and part.part + 1 < layers:
                    self._gate.open(part.part + 1)
                part = next(parts, None)
            if seen != chunks * (layers - 1):
                raise DataLossError("K/V of some layers did not come; fetch again")
            self._gate.open(layers)
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
            place_layer(piece, part.part, keys[0], values[0], self._support, self._cache, self._angles)
