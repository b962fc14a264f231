"""K/V between tensors and bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.errors import TensorError
from kvboost.runtime.kv.codec import TORCH_DTYPES, pack, unpack
from kvboost.types import KVLayout

layouts = st.builds(
    KVLayout,
    num_layers=st.integers(1, 3),
    num_kv_heads=st.integers(1, 3),
    key_dim=st.integers(1, 9),
    value_dim=st.integers(1, 9),
    dtype=st.sampled_from(list(TORCH_DTYPES)),
)


def tensors(layout, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (layout.num_layers, layout.num_kv_heads, tokens)
    dtype = TORCH_DTYPES[layout.dtype]
    keys = torch.randn(*shape, layout.key_dim, generator=generator).to(dtype)
    return keys, torch.randn(*shape, layout.value_dim, generator=generator).to(dtype)


@given(layouts, st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_unpacking_gives_back_what_was_packed(layout, tokens):
    keys, values = tensors(layout, tokens)
    payload = pack(keys, values, layout)
    assert payload.nbytes == tokens * layout.token_bytes
    found_keys, found_values = unpack(payload, layout, tokens)
    assert torch.equal(found_keys, keys)
    assert torch.equal(found_values, values)


@given(layouts, st.integers(1, 7))
@settings(max_examples=20, deadline=None)
def test_a_payload_goes_layer_by_layer_keys_before_values(layout, tokens):
    keys, values = tensors(layout, tokens)
    expected = b"".join(
        part[layer].contiguous().view(torch.uint8).numpy().tobytes()
        for layer in range(layout.num_layers)
        for part in (keys, values)
    )
    assert bytes(pack(keys, values, layout)) == expected


@given(layouts, st.integers(1, 7), st.integers(-9, 9).filter(bool))
@settings(max_examples=30, deadline=None)
def test_another_byte_count_is_refused(layout, tokens, more):
    size = tokens * layout.token_bytes + more
    with pytest.raises(TensorError, match="bytes of K/V"):
        unpack(memoryview(bytes(max(size, 0))), layout, tokens)


SMALL = KVLayout(2, 2, 4, 6, "float16")


@pytest.mark.parametrize(
    "change",
    [
        lambda k, v: (k.float(), v),
        lambda k, v: (k, v.bfloat16()),
        lambda k, v: (k[:1], v[:1]),
        lambda k, v: (k[:, :1], v[:, :1]),
    ],
    ids=["key dtype", "value dtype", "layers", "heads"],
)
def test_tensors_that_do_not_fit_the_layout_are_refused(change):
    with pytest.raises(TensorError, match="do not fit"):
        pack(*change(*tensors(SMALL, 3)), SMALL)


@pytest.mark.parametrize(
    "change",
    [lambda k, v: (k[..., :2], v), lambda k, v: (k, v[..., :1]), lambda k, v: (k, v[:, :, :1])],
    ids=["key_dim", "value_dim", "fewer values"],
)
def test_tensors_of_other_sizes_are_refused(change):
    with pytest.raises(TensorError, match="do not fit"):
        pack(*change(*tensors(SMALL, 3)), SMALL)


def test_the_payload_is_a_copy():
    keys, values = tensors(SMALL, 3)
    payload = pack(keys, values, SMALL)
    before = bytes(payload)
    keys.zero_()
    assert bytes(payload) == before


def test_tensors_that_are_not_contiguous():
    keys, values = tensors(SMALL, 8)
    payload = pack(keys[:, :, 2:5], values[:, :, 2:5], SMALL)
    assert torch.equal(unpack(payload, SMALL, 3)[0], keys[:, :, 2:5])


def test_unpacking_copies_nothing_and_keeps_the_payload_alive():
    keys, values = tensors(SMALL, 3)
    source = np.frombuffer(bytes(pack(keys, values, SMALL)), np.uint8).copy()
    found, _ = unpack(memoryview(source).toreadonly(), SMALL, 3)
    source[:] = 0
    assert not found.any()
    del source
    assert not found.any()


def test_a_payload_at_an_odd_address_is_read_right():
    keys, values = tensors(SMALL, 3)
    whole = b"x" + bytes(pack(keys, values, SMALL))
    assert torch.equal(unpack(memoryview(whole)[1:], SMALL, 3)[0], keys)


def test_bits_of_one_half_type_are_not_read_as_the_other():
    """The byte counts are equal, so only the namespace keeps them apart: their keys must differ."""
    other = KVLayout(2, 2, 4, 6, "bfloat16")
    keys, values = tensors(SMALL, 3)
    assert not torch.equal(unpack(pack(keys, values, SMALL), other, 3)[0].float(), keys.float())
    assert other != SMALL
