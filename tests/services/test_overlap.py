"""A request begins while K/V from another host still arrive; a fault on the way costs the reuse, never the answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from kvboost.api import engine_of
from kvboost.client import CacheClient
from kvboost.errors import FallbackWarning, TruncatedStreamError
from kvboost.policy import ReusePolicy
from kvboost.runtime.cost.meter import FetchMeter
from kvboost.types import ChunkPart, Handover
from tests.boosting import GREEDY, boosted, document, plain, prompt
from tests.servers import RunningServer, cache_server

POLICY = ReusePolicy(tiers=("prefix", "exact"), recompute_ratio=0.3, worth_it=False, audit_rate=0.0)
DOCUMENTS = [document(number) for number in range(4)]
FIRST = prompt(*DOCUMENTS)
SECOND = prompt(*DOCUMENTS[::-1])


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with cache_server() as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[CacheClient]:
    made = CacheClient(server.address, shared_memory=False)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FetchMeter, "is_slow", lambda *_: True)


def _forget(model: PreTrainedModel, client: CacheClient) -> None:
    """Empty the cache for the next test once everything was put."""
    engine = engine_of(model)
    engine.writer.flush()
    client.drop(engine.preparer.namespace.key)


def _damaged(parts: Iterator[ChunkPart], after: int, error: Exception) -> Iterator[ChunkPart]:
    for number, part in enumerate(parts):
        if number == after:
            raise error
        yield part


@pytest.mark.parametrize("repair", ["query", "none", "deviation"])
def test_layer_by_layer_gives_the_answer_of_whole_chunks(
    client: CacheClient, repair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ReusePolicy(tiers=("prefix", "exact"), repair=repair, recompute_ratio=0.3, worth_it=False, audit_rate=0.0)
    asked = []
    plain_parts = CacheClient.fetch_parts

    def spy(self: CacheClient, *args: object) -> Iterator[ChunkPart]:
        asked.append(args)
        return plain_parts(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(CacheClient, "fetch_parts", spy)
    answers = {}
    for way in ("parts", "chunks"):
        if way == "chunks":
            monkeypatch.setattr("kvboost.runtime.prepare.prepare.PartSource", type("Nobody", (), {}))
        with boosted("llama", client, policy) as model:
            model.generate(FIRST, **GREEDY)
            out = model.generate(SECOND, **GREEDY, return_dict_in_generate=True, output_logits=True)
            report = model.last_reuse
            _forget(model, client)
        assert report.reused_tokens > 40
        assert report.handover is Handover.FRAMES
        assert report.fallback is None
        answers[way] = torch.cat(out.logits)
    assert len(asked) == 1
    torch.testing.assert_close(answers["parts"], answers["chunks"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("after", [0, 15])
def test_a_cache_that_dies_on_the_way_costs_the_reuse_alone(
    client: CacheClient, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with boosted("llama", client, POLICY) as model:
        model.generate(FIRST, **GREEDY)
        engine_of(model).writer.flush()
        whole = CacheClient.fetch_parts
        with monkeypatch.context() as patch:
            patch.setattr(
                CacheClient, "fetch_parts", lambda *args: _damaged(whole(*args), after, TruncatedStreamError("cut"))
            )
            with pytest.warns(FallbackWarning, match="cut"):
                out = model.generate(SECOND, **GREEDY)
        assert "TruncatedStreamError" in model.last_reuse.fallback
        assert model.last_reuse.reused_tokens == 0
        assert torch.equal(out, plain(model, SECOND, **GREEDY))
        assert engine_of(model).counters.snapshot()["fallbacks"] == 1

        model.generate(prompt(*DOCUMENTS[1:], DOCUMENTS[0]), **GREEDY)
        assert model.last_reuse.fallback is None
        assert model.last_reuse.reused_tokens > 40
        _forget(model, client)


def test_a_streamer_hears_the_prompt_once(client: CacheClient, monkeypatch: pytest.MonkeyPatch) -> None:
    class Heard:
        def __init__(self) -> None:
            self.parts: list[torch.Tensor] = []

        def put(self, value: torch.Tensor) -> None:
            self.parts.append(value)

        def end(self) -> None:
            pass

    with boosted("llama", client, POLICY) as model:
        model.generate(FIRST, **GREEDY)
        streamer = Heard()
        monkeypatch.setattr(CacheClient, "fetch_parts", lambda *args: pytest.fail("must not be used"))
        model.generate(SECOND, **GREEDY, streamer=streamer)
        assert model.last_reuse.reused_tokens > 40
        assert sum(part.numel() == SECOND.numel() for part in streamer.parts) == 1
        _forget(model, client)
