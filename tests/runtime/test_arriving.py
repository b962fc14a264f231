"""K/V that arrive layer by layer end up where whole chunks would, and a layer is used only when it is there."""

import threading

import pytest
import torch

from kvboost.checksum import checksum
from kvboost.errors import ChecksumError, DataLossError, LateFetchError, TruncatedStreamError
from kvboost.runtime.kv.codec import pack
from kvboost.runtime.kv.layer_wise_load import LayerWiseLoad
from kvboost.runtime.kv.placing import Placer
from kvboost.runtime.kv.slab import LayerGate, SlabCache
from kvboost.runtime.kv.workers import Hands
from kvboost.runtime.model.rope import Pairing, Rope
from kvboost.runtime.model.support import ModelSupport
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.types import ChunkKV, ChunkPart, Donor, KVLayout, Span, Tier

LAYOUT = KVLayout(4, 2, 6, 4, "float32")
SUPPORT = ModelSupport(
    LAYOUT, (Rope((1.0, 0.1), Pairing.HALF), None, Rope((0.5,), Pairing.INTERLEAVED), None), frozenset(Tier)
)
LENGTH = 60


def _donor(number):
    return Donor(number, tuple(range(10)), 3, b"", b"", True)


PLAN = Plan(
    LENGTH,
    (
        ReuseSpan(Span(3, 13), _donor(1), 0, Tier.EXACT),
        ReuseSpan(Span(20, 26), _donor(2), 2, Tier.EXACT),
        ReuseSpan(Span(40, 50), _donor(1), 0, Tier.EXACT),
        ReuseSpan(Span(52, 55), _donor(3), 7, Tier.EXACT),
    ),
)


def _payload(number):
    generator = torch.Generator().manual_seed(number)
    keys, values = (torch.randn(4, 2, 10, dim, generator=generator) for dim in (6, 4))
    return bytes(pack(keys, values, LAYOUT))


PAYLOADS = {number: _payload(number) for number in (1, 2, 3)}


def parts(numbers=(1, 2, 3), layers=range(4)):
    """Yield the parts of chunks as a server sends them."""
    size = len(PAYLOADS[1]) // 4
    for layer in layers:
        for number in numbers:
            yield ChunkPart(number, layer, PAYLOADS[number][layer * size : (layer + 1) * size])


def placed(numbers):
    slab = SlabCache(LAYOUT, LENGTH)
    chunks = [ChunkKV(n, PAYLOADS[n], checksum(PAYLOADS[n])) for n in numbers]
    return slab, Placer(PLAN, SUPPORT, slab, Hands()).place(chunks)


@pytest.mark.parametrize("numbers", [(1, 2, 3), (3, 1), (2,), ()])
def test_the_slab_is_that_of_whole_chunks(numbers):
    expected, missing = placed(numbers)
    slab = SlabCache(LAYOUT, LENGTH)
    assert LayerWiseLoad(PLAN, SUPPORT, slab, Hands()).begin(parts(numbers)) == missing
    slab.complete()
    assert torch.equal(slab.key_slab, expected.key_slab)
    assert torch.equal(slab.value_slab, expected.value_slab)


def test_each_layer_waits_for_its_own_parts_alone():
    slab = SlabCache(LAYOUT, LENGTH)
    allowed = [threading.Event() for _ in range(4)]

    def slowly():
        for part in parts():
            allowed[part.part].wait(10)
            yield part
        allowed[3].wait(10)

    for event in allowed[:2]:
        event.set()
    LayerWiseLoad(PLAN, SUPPORT, slab, Hands()).begin(slowly())
    gate = slab.layers[0].gate
    gate.wait(0)
    gate.wait(1)
    waiting = threading.Thread(target=gate.wait, args=(2,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    allowed[2].set()
    waiting.join(10)
    assert not waiting.is_alive()
    allowed[3].set()
    slab.complete()


@pytest.mark.parametrize("error", [TruncatedStreamError("cut"), ChecksumError("bad", 2)])
def test_what_fails_late_ends_the_wait_and_names_its_cause(error):
    def failing():
        yield from parts(layers=range(2))
        raise error

    slab = SlabCache(LAYOUT, LENGTH)
    LayerWiseLoad(PLAN, SUPPORT, slab, Hands()).begin(failing())
    with pytest.raises(LateFetchError, match=type(error).__name__) as raised:
        slab.complete()
    assert raised.value.__cause__ is error
    with pytest.raises(LateFetchError):  # also who comes later is told
        slab.layers[3].gate.wait(3)


def test_layers_that_do_not_come_are_a_loss():
    slab = SlabCache(LAYOUT, LENGTH)
    LayerWiseLoad(PLAN, SUPPORT, slab, Hands()).begin(parts(layers=range(3)))
    with pytest.raises(LateFetchError, match="did not come"):
        slab.complete()


def test_what_fails_at_once_is_raised_as_it_is():
    def failing():
        raise TruncatedStreamError("cut")
        yield

    slab = SlabCache(LAYOUT, LENGTH)
    with pytest.raises(TruncatedStreamError):
        LayerWiseLoad(PLAN, SUPPORT, slab, Hands()).begin(failing())
    with pytest.raises(DataLossError, match="without being asked for"):
        LayerWiseLoad(PLAN, SUPPORT, slab, Hands()).begin(iter([ChunkPart(99, 0, b"")]))


def test_a_gate_tells_a_failure_before_a_layer():
    gate = LayerGate()
    gate.open(4)
    gate.wait(3)
    gate.fail(LateFetchError("late"), ValueError("why"))
    with pytest.raises(LateFetchError):
        gate.wait(0)
