"""Every noun survives the wire; what cannot be is refused by the name of its field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.errors import InputError, TensorError
from kvboost.types import (
    DTYPE_BYTES,
    CacheInfo,
    CacheStats,
    Chunk,
    Donor,
    KVLayout,
    Match,
    MatchQuery,
    MatchResult,
    Namespace,
    NamespaceStats,
    NewChunk,
    PutReceipt,
    Span,
    Tier,
)
from kvboost.v1 import cache_pb2 as pb
from kvboost.wire import convert, convert_figures

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
sizes = st.integers(1, 2**32 - 1)
spans = st.tuples(st.integers(0, 2**31), st.integers(1, 2**31 - 1)).map(lambda t: Span(t[0], t[0] + t[1]))
layouts = st.builds(KVLayout, sizes, sizes, sizes, sizes, st.sampled_from(sorted(DTYPE_BYTES)))
namespaces = st.builds(
    Namespace, model=texts.filter(bool), tokenizer=texts, rope=texts, layout=layouts, adapter=texts, tenant=texts
)
token_ids = st.lists(u32, min_size=1, max_size=8).map(tuple)
donors = st.builds(Donor, u64, token_ids, u32, st.binary(max_size=32), st.binary(max_size=32), st.booleans())
matches = st.builds(Match, spans, donors, spans, st.sampled_from(list(Tier)), st.floats(0, 1))
stats = st.builds(
    NamespaceStats,
    texts,
    texts,
    texts,
    u64,
    u64,
    u64,
    u64,
    u64,
    st.dictionaries(st.sampled_from(list("abc")), u64),
    u64,
)


@st.composite
def queries(draw: st.DrawFn) -> MatchQuery:
    lengths = draw(st.lists(st.integers(1, 5), max_size=5))
    chunks, at = [], 0
    for length in lengths:
        chunks.append(Chunk(Span(at, at + length), draw(texts)))
        at += length
    ids = tuple(draw(st.lists(u32, min_size=at, max_size=at)))
    threshold = draw(st.none() | st.floats(0, 1))
    return MatchQuery(draw(texts), ids, tuple(chunks), threshold, draw(sizes), draw(st.none() | sizes))


def wire(message):
    """Send a message over a wire."""
    return type(message).FromString(message.SerializeToString())


@given(namespaces)
def test_a_namespace_survives(namespace):
    back = convert.namespace_from_proto(wire(convert.namespace_to_proto(namespace)))
    assert back == namespace
    assert back.key == namespace.key


@given(queries())
def test_a_query_survives(query):
    assert convert.query_from_proto(wire(convert.query_to_proto(query))) == query


@given(st.lists(matches, max_size=4, unique_by=lambda m: m.donor.chunk_id), u32, u32)
def test_a_result_survives(found, embedded, spared):
    result = MatchResult(tuple(found), embedded, spared)
    assert convert.result_from_proto(wire(convert.result_to_proto(result))) == result


@given(donors, st.lists(spans, min_size=2, max_size=4))
def test_a_donor_of_several_matches_is_sent_once(donor, targets):
    result = MatchResult(tuple(Match(t, donor, t, Tier.EXACT) for t in targets))
    message = wire(convert.result_to_proto(result))
    assert len(message.donors) == 1
    assert convert.result_from_proto(message) == result


@given(spans, texts, st.booleans(), st.binary(min_size=1))
def test_a_new_chunk_survives(span, text, exact, payload):
    chunk = NewChunk(span, text, exact, payload)
    message = wire(convert.new_chunk_to_proto(chunk))
    assert message.nbytes == len(payload)
    assert convert.new_chunk_from_proto(message, payload) == chunk


@given(st.builds(PutReceipt, u32, u32, u32, u32))
def test_a_receipt_survives(receipt):
    assert convert_figures.receipt_from_proto(wire(convert_figures.receipt_to_proto(receipt))) == receipt


@given(st.builds(CacheInfo, texts, u64, texts, u32))
def test_an_info_survives(info):
    assert convert_figures.info_from_proto(wire(convert_figures.info_to_proto(info))) == info


@given(st.builds(CacheStats, u64, u64, st.floats(0, 1e9), st.lists(stats, max_size=3).map(tuple)))
def test_stats_survive(figures):
    assert convert_figures.stats_from_proto(wire(convert_figures.stats_to_proto(figures))) == figures


@pytest.mark.parametrize("tier", list(Tier))
def test_a_tier_survives(tier):
    assert convert.tier_from_proto(convert.tier_to_proto(tier)) is tier


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.MatchRequest(token_ids=[1, 2], chunk_ends=[2], max_nominees=1), "chunk_texts"),
        (pb.MatchRequest(token_ids=[1, 2], chunk_ends=[2, 1], chunk_texts="ab", max_nominees=1), "chunk_ends[1]"),
        (pb.MatchRequest(token_ids=[1, 2], chunk_ends=[0], chunk_texts="a", max_nominees=1), "chunk_ends[0]"),
        (pb.MatchRequest(token_ids=[1, 2], chunk_ends=[1], chunk_texts="a", max_nominees=1), "token_ids"),
        (pb.MatchRequest(token_ids=[1], chunk_ends=[1], chunk_texts="a", threshold=1.5, max_nominees=1), "threshold"),
        (pb.MatchRequest(token_ids=[1], chunk_ends=[1], chunk_texts="a", threshold=float("nan")), "threshold"),
        (pb.MatchRequest(token_ids=[1], chunk_ends=[1], chunk_texts="a"), "max_nominees"),
    ],
)
def test_a_bad_query_is_refused_by_field(message, field):
    with pytest.raises(InputError) as caught:
        convert.query_from_proto(message)
    assert field in str(caught.value)


def test_a_bad_namespace_is_refused_by_field():
    layout = pb.KVLayout(num_layers=1, num_kv_heads=1, key_dim=1, value_dim=1, dtype="float32")
    with pytest.raises(InputError, match=r"namespace\.model"):
        convert.namespace_from_proto(pb.Namespace(layout=layout))
    with pytest.raises(InputError, match=r"namespace\.layout"):
        convert.namespace_from_proto(pb.Namespace(model="m"))
    layout.dtype = "int8"
    with pytest.raises(TensorError, match="dtype"):
        convert.namespace_from_proto(pb.Namespace(model="m", layout=layout))


def test_a_bad_result_is_refused_by_field():
    match = pb.Match(target=pb.Span(start=0, end=1), donor=3)
    with pytest.raises(InputError, match=r"matches\[0\]\.donor"):
        convert.result_from_proto(pb.MatchResponse(matches=[match]))


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_a_token_id_that_does_not_fit_is_refused(bad):
    with pytest.raises(InputError, match="token_ids"):
        convert.query_to_proto(MatchQuery("n", (bad,), (Chunk(Span(0, 1), ""),)))
