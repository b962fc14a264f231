"""The hand-written frame codec speaks protobuf, and whole chunks come out of frames or nothing."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.checksum import checksum
from kvboost.client.fetched import chunks
from kvboost.errors import DataLossError, InputError, TruncatedStreamError
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire import frames
from kvboost.wire.frames import FRAME_BYTES, Frame

u64 = st.integers(0, 2**64 - 1)
any_frame = st.builds(Frame, u64, u64, st.binary(max_size=300), u64, u64)


def as_message(frame: Frame) -> pb.Frame:
    return pb.Frame(
        chunk=frame.chunk,
        offset=frame.offset,
        data=bytes(frame.data),
        total_bytes=frame.total_bytes,
        checksum=frame.checksum,
    )


@given(any_frame)
def test_protobuf_reads_what_we_write(frame):
    assert pb.Frame.FromString(frames.encode(frame)) == as_message(frame)
    assert pb.PutRequest.FromString(frames.encode_put(frame)) == pb.PutRequest(frame=as_message(frame))


@given(any_frame)
def test_we_read_what_protobuf_writes(frame):
    assert as_message(frames.decode(as_message(frame).SerializeToString())) == as_message(frame)
    raw = pb.PutRequest(frame=as_message(frame)).SerializeToString()
    assert as_message(frames.decode_put(raw)) == as_message(frame)


@given(any_frame)
def test_fields_may_come_in_any_order_and_unknown_ones_are_skipped(frame):
    data_first = pb.Frame(data=bytes(frame.data)).SerializeToString()
    rest = pb.Frame(
        chunk=frame.chunk, offset=frame.offset, total_bytes=frame.total_bytes, checksum=frame.checksum
    ).SerializeToString()
    unknown = b"\xa2\x06\x03abc"  # field 100, three bytes
    assert as_message(frames.decode(data_first + unknown + rest)) == as_message(frame)


def test_a_header_survives():
    header = pb.PutHeader(namespace="n", token_ids=[1, 2])
    assert frames.decode_put(frames.encode_put(header)) == header


@given(any_frame, st.data())
def test_a_cut_message_is_refused_or_shorter_but_never_padded(frame, data):
    raw = frames.encode(frame)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    try:
        back = frames.decode(cut)
    except InputError:
        return
    assert len(back.data) == 0  # cut before the data: all that follows is gone, not replaced


@given(st.binary(max_size=60))
def test_garbage_raises_nothing_but_input_errors(raw):
    for decode in (frames.decode, frames.decode_put):
        with contextlib.suppress(InputError):
            decode(raw)


@pytest.mark.parametrize("nbytes", [1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES + 5])
def test_chunks_come_back_whole(nbytes):
    payloads = {7: bytes(range(256)) * (nbytes // 256) + b"x" * (nbytes % 256), 9: b"second"}
    stream = (f for c, p in payloads.items() for f in frames.split(c, p, checksum(p)))
    back = list(chunks(frames.decode(frames.encode(f)) for f in stream))
    assert {c.chunk_id: bytes(c.verified()) for c in back} == payloads
    assert all(memoryview(c.payload).readonly for c in back)


def three_frames() -> list[Frame]:
    payload = bytes(2 * FRAME_BYTES + 1)
    return list(frames.split(1, payload, checksum(payload)))


@pytest.mark.parametrize("kept", [1, 2])
def test_a_stream_that_ends_early_is_truncated(kept):
    with pytest.raises(TruncatedStreamError, match="chunk 1"):
        list(chunks(iter(three_frames()[:kept])))


def test_another_chunk_in_the_middle_is_a_truncation():
    with pytest.raises(TruncatedStreamError):
        list(chunks(iter([*three_frames()[:2], *frames.split(2, b"abc", 0)])))


@pytest.mark.parametrize("order", [(0, 2, 1), (0, 0, 1), (1, 2)])
def test_a_gap_or_an_overlap_is_a_loss(order):
    with pytest.raises(DataLossError):
        list(chunks(three_frames()[i] for i in order))


def test_a_frame_past_the_announced_end_is_a_loss():
    with pytest.raises(DataLossError):
        list(chunks(iter([Frame(1, 0, b"abcd", total_bytes=3)])))
