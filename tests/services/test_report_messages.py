"""A reuse report is the same at the gRPC client as in the runtime."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvboost.client.convert_runtime import report_from_proto
from kvboost.reuse import ReuseReport, TierSpan
from kvboost.services.runtime_server.messages import report_to_proto
from kvboost.types import Handover, Span, Tier

counts = st.integers(0, 2**31)
finite = st.floats(allow_nan=False, allow_infinity=False)
spans = st.builds(
    lambda start, length, *rest: TierSpan(Span(start, start + length), *rest),
    counts,
    st.integers(1, 1000),
    st.sampled_from(Tier),
    finite,
    st.booleans(),
)
reports = st.builds(
    ReuseReport,
    prompt_tokens=counts,
    tokens_by_tier=st.fixed_dictionaries(dict.fromkeys(Tier, counts)),
    recomputed_tokens=counts,
    recompute_ratio=finite,
    ttft_s=finite,
    stages_s=st.dictionaries(st.sampled_from(["match", "fetch", "repair"]), finite),
    declined=st.lists(st.text(), max_size=3).map(tuple),
    fallback=st.none() | st.text(min_size=1),
    similarity=finite,
    spans=st.lists(spans, max_size=4).map(tuple),
    saved_s=st.none() | finite,
    handover=st.none() | st.sampled_from(Handover),
)


@given(reports)
def test_a_report_survives_the_wire(report: ReuseReport) -> None:
    assert report_from_proto(report_to_proto(report)) == report
