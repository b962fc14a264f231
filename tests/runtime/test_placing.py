"""Fetched chunks come to stand at their new positions, each layer's keys turned by that layer's rope."""

import pytest
import torch

from kvboost.checksum import checksum
from kvboost.errors import ChecksumError, TensorError
from kvboost.runtime.kv.codec import pack
from kvboost.runtime.kv.placing import Placer, place_layers
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.kv.workers import Hands
from kvboost.runtime.model.rope import Pairing, Rope, rotated
from kvboost.runtime.model.support import ModelSupport
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.types import ChunkKV, Donor, KVLayout, Span, Tier

ONE = Rope((1.0, 0.1), Pairing.HALF)
TWO = Rope((0.5,), Pairing.INTERLEAVED)
ROPES = {"all alike": (ONE, ONE, ONE), "one without": (ONE, None, ONE), "of two kinds": (TWO, ONE, None)}
LENGTH = 40


def setting(ropes, dtype="float32"):
    """Return support, an empty slab, and keys, values and chunk of a donor of ten tokens."""
    layout = KVLayout(3, 2, 6, 4, dtype)
    generator = torch.Generator().manual_seed(0)
    torch_dtype = getattr(torch, dtype)
    keys = torch.randn(3, 2, 10, 6, generator=generator).to(torch_dtype)
    values = torch.randn(3, 2, 10, 4, generator=generator).to(torch_dtype)
    payload = pack(keys, values, layout)
    support = ModelSupport(layout, ropes, frozenset(Tier))
    return support, SlabCache(layout, LENGTH), keys, values, ChunkKV(1, payload, checksum(payload))


def piece(start, end, offset=0, number=1, at=3):
    return ReuseSpan(Span(start, end), Donor(number, tuple(range(10)), at, b"", b"", True), offset, Tier.EXACT)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("ropes", ROPES.values(), ids=ROPES)
@pytest.mark.parametrize(("start", "offset", "count"), [(20, 0, 10), (1, 2, 5), (5, 2, 8), (3, 0, 10)])
def test_keys_are_turned_layer_by_layer_and_values_copied(ropes, dtype, start, offset, count):
    support, slab, keys, values, chunk = setting(ropes, dtype)
    plan = Plan(LENGTH, (piece(start, start + count, offset),))
    assert Placer(plan, support, slab, Hands()).place([chunk]) == set()
    at, source = slice(start, start + count), slice(offset, offset + count)
    assert torch.equal(slab.value_slab[:, 0, :, at], values[:, :, source])
    for layer, rope in enumerate(ropes):
        expected = keys[layer, :, source]
        if rope is not None:
            expected = rotated(expected, *rope.angles(torch.tensor([start - 3 - offset])), rope).to(keys.dtype)
        assert torch.equal(slab.key_slab[layer, 0, :, at], expected)


def test_nothing_else_is_written():
    support, slab, _, _, chunk = setting(ROPES["one without"])
    Placer(Plan(LENGTH, (piece(20, 25),)), support, slab, Hands()).place([chunk])
    slab.key_slab[:, :, :, 20:25] = 0
    slab.value_slab[:, :, :, 20:25] = 0
    assert not slab.key_slab.any()
    assert not slab.value_slab.any()


def test_one_chunk_lends_to_several_spans():
    support, slab, _, values, chunk = setting(ROPES["all alike"])
    plan = Plan(LENGTH, (piece(0, 4, 6), piece(10, 20), piece(25, 27, 1)))
    assert Placer(plan, support, slab, Hands()).place([chunk]) == set()
    for start, offset, count in ((0, 6, 4), (10, 0, 10), (25, 1, 2)):
        placed = slab.value_slab[:, 0, :, start : start + count]
        assert torch.equal(placed, values[:, :, offset : offset + count])


def test_chunks_that_do_not_come_are_named():
    support, slab, _, _, chunk = setting(ROPES["all alike"])
    plan = Plan(LENGTH, (piece(0, 4), piece(10, 20, number=2), piece(30, 33, number=3)))
    assert Placer(plan, support, slab, Hands()).place([chunk]) == {2, 3}


@pytest.mark.parametrize("cut", [0, 24])
def test_damaged_bytes_are_refused_by_their_checksum(cut):
    support, slab, _, _, chunk = setting(ROPES["all alike"])
    payload = bytearray(chunk.payload)[cut:]
    payload[3] ^= 4
    with pytest.raises(ChecksumError):
        Placer(Plan(LENGTH, (piece(0, 4),)), support, slab, Hands()).place([ChunkKV(1, bytes(payload), chunk.checksum)])


def test_bytes_that_change_while_they_are_placed_are_refused(monkeypatch):
    support, slab, _, _, chunk = setting(ROPES["all alike"])
    payload = bytearray(chunk.payload)

    def meanwhile(*args):
        payload[3] ^= 4
        place_layers(*args)

    monkeypatch.setattr("kvboost.runtime.kv.placing.place_layers", meanwhile)
    with pytest.raises(ChecksumError):
        Placer(Plan(LENGTH, (piece(0, 4),)), support, slab, Hands()).place([ChunkKV(1, payload, chunk.checksum)])


def test_bytes_of_another_layout_are_refused():
    support, slab, _, _, _ = setting(ROPES["all alike"])
    chunk = setting(ROPES["all alike"], "float16")[-1]
    with pytest.raises(TensorError):
        Placer(Plan(LENGTH, (piece(0, 4),)), support, slab, Hands()).place([chunk])
