"""``inference_mode()`` around one call and not around the next: memory goes from one to the other."""

import pytest
import torch

from kvboost.policy import ReusePolicy
from kvboost.runtime.batching import Batch
from kvboost.runtime.kv.slab import HEAD_ROOM_TOKENS, SlabCache
from kvboost.types import KVLayout
from tests.boosting import GREEDY, boosted, document, plain, prompt, settle
from tests.runtime.batching.listeners import ask

DOCS = [document(i) for i in range(4)]
ORDERS = [(0, 1), (1, 0, 2), (2, 3, 1), (3, 1, 0)]
CALLS = {
    "greedy": {},
    "beams": {"num_beams": 2},
    "rows": {},
    "cache of its own": {"return_dict_in_generate": True},
}


def inputs(name, order):
    ids = prompt(*(DOCS[i] for i in order))
    return ids.repeat(2, 1) if name == "rows" else ids


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_calls_in_turn(name, first):
    audited = ReusePolicy(audit_rate=1.0, worth_it=False)
    with boosted(policy=audited) as model, boosted(policy=audited) as control:
        for i, order in enumerate(ORDERS):
            ids = inputs(name, order)
            with torch.inference_mode((i % 2 == 0) == first):
                found = model.generate(ids, **GREEDY, **CALLS[name])
            wanted = control.generate(ids, **GREEDY, **CALLS[name])
            if name == "cache of its own":
                found, wanted = found.sequences, wanted.sequences
            assert torch.equal(found, wanted)
            for each in (model, control):
                settle(each).audit.flush(30.0)
        assert model.last_reuse.reused_tokens > 0
        counts = model.kvboost_engine.counters.snapshot()
        assert counts.get("put_failures", 0) == counts.get("audit_failures", 0) == counts.get("fallbacks", 0) == 0
        assert counts["audits"] > 0


def test_going_on_from_a_cache_of_the_other_mode():
    ids = prompt(*DOCS[:2])
    arguments = {**GREEDY, "return_dict_in_generate": True}
    with boosted() as model:
        wanted = plain(model, ids, **arguments)
        wanted = plain(model, wanted.sequences, cache=wanted.past_key_values, **GREEDY)
        with torch.inference_mode():
            found = model.generate(ids, **arguments)
        assert torch.equal(model.generate(found.sequences, cache=found.past_key_values, **GREEDY), wanted)


def test_a_slab_that_grew_in_it_can_be_written_to_outside():
    layout = KVLayout(1, 1, 4, 4, "float32")
    states = torch.ones(1, 1, 2 * HEAD_ROOM_TOKENS, 4)
    with torch.inference_mode():
        cache = SlabCache(layout, 8)
        cache.layers[0].update(states, states)
    keys, _ = cache.layers[0].update(2 * states[:, :, :1], states[:, :, :1])
    assert keys[0, 0, -1].tolist() == [2.0] * 4


def test_a_batch_takes_over_slabs_from_calls_in_it():
    ids = prompt(*DOCS[1:3])
    with boosted(policy=ReusePolicy(worth_it=False)) as model:
        engine = model.kvboost_engine
        with torch.inference_mode():
            model.generate(prompt(*DOCS[:2]), **GREEDY)
        settle(model)
        batch = Batch(engine)
        try:
            answer = ask(batch, ids[0].tolist(), 12).answer()
        finally:
            batch.close()
        settle(model)
        assert len(answer) > 0
        assert engine.counters.snapshot().get("put_failures", 0) == 0
        with torch.inference_mode():
            model.generate(ids, **GREEDY)
        assert model.last_reuse.reused_tokens > 0
