"""What is asked of a runtime, to messages and back."""

from __future__ import annotations

import pytest

from kvboost.client.convert_runtime import warm_receipt_from_proto
from kvboost.client.runtime_client import _parts
from kvboost.client.runtime_types import WarmReceipt
from kvboost.errors import InputError, RuntimeBusyError, RuntimeUnavailableError
from kvboost.sampling import Sampling
from kvboost.v1 import runtime_pb2 as pb
from kvboost.wire.convert_sampling import sampling_from_proto, sampling_to_proto
from kvboost.wire.status import status_of


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, stop=("a", "b"), repetition_penalty=1.0),
        Sampling(repetition_penalty=1.5),
    ],
    ids=str,
)
def test_sampling_goes_there_and_back(sampling: Sampling) -> None:
    assert sampling_from_proto(sampling_to_proto(sampling)) == sampling


@pytest.mark.parametrize("penalty", [0.0, -1.0, float("inf"), float("nan")])
def test_a_repetition_penalty_out_of_range_is_refused(penalty: float) -> None:
    with pytest.raises(InputError, match="repetition_penalty"):
        sampling_from_proto(pb.Sampling(repetition_penalty=penalty))


def test_receipts_of_a_later_call_count_on() -> None:
    message = pb.WarmReceipt(index=1, tokens=9, reused_tokens=3, stored_chunks=2, refused_chunks=1, seconds=0.5)
    assert warm_receipt_from_proto(message, 4) == WarmReceipt(5, 9, 3, 2, 1, 0.5)


def test_documents_are_parted_by_size_and_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvboost.client.runtime_client.WARM_CALL_BYTES", 10)
    assert list(_parts(["aaaa", "bbbb", "cccc", "d" * 30, "é" * 4, "e"])) == [
        ["aaaa", "bbbb"],
        ["cccc"],
        ["d" * 30],
        ["é" * 4, "e"],
    ]
    assert list(_parts([])) == []


def test_a_full_runtime_is_told_apart_from_a_dead_one() -> None:
    assert status_of(RuntimeBusyError("full")).name == "RESOURCE_EXHAUSTED"
    assert status_of(RuntimeUnavailableError("dead")).name == "UNAVAILABLE"
