"""Two threads on one boosted model, over a real cache whose puts are slow: nothing is torn, nothing is lost."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.runtime.kv.codec import unpack
from tests.boosting import boosted, document, plain, prompt, settle
from tests.fakes import NgramEmbedder

DOCS = [document(i, sentences=2) for i in range(4)]
ORDERS = [(0, 1), (0, 1, 2), (2, 0), (3, 1), (3, 1, 0), (2, 0, 3)]
PROMPTS = [prompt(*(DOCS[i] for i in order)) for order in ORDERS]
GREEDY = {"do_sample": False, "max_new_tokens": 6}


class SlowPuts(LocalCache):
    """Begins each put only when somebody else has come along, or after a moment."""

    def __init__(self):
        super().__init__(64 << 20, NgramEmbedder())
        self.moved = threading.Event()

    def put(self, request):
        self.moved.wait(0.02)
        self.moved.clear()
        return super().put(request)

    def match(self, query):
        self.moved.set()
        return super().match(query)


def kept(cache):
    """Return what the cache holds, by tokens from the start to the chunk's end."""
    (room,) = cache._rooms.values()
    with room.table() as table:
        namespace, donors = table.namespace, {donor.chunk_id: donor for donor in table.donors}
    held = {}
    for chunk in cache.fetch(namespace.key, list(donors)):
        chunk.verified()
        donor = donors[chunk.chunk_id]
        held[donor.prefix_hash] = unpack(memoryview(chunk.payload), namespace.layout, len(donor.token_ids))
    return held


def test_answers_and_stored_chunks_are_those_of_one_thread():
    """Callers that get their cache spoil it at once: were a put still to read it, wrong K/V would be sealed."""
    policy = ReusePolicy(tiers=("prefix",), audit_rate=0.0, worth_it=False)
    with boosted(policy=policy) as alone:
        expected = [plain(alone, ids, **GREEDY) for ids in PROMPTS]
        for ids in PROMPTS:
            alone.generate(ids, **GREEDY)
        right = kept(settle(alone).preparer.cache)

    cache = SlowPuts()
    with boosted(cache=cache, policy=policy) as model:
        engine = model.kvboost_engine

        def work(seed):
            order = list(range(len(PROMPTS))) * 3
            random.Random(seed).shuffle(order)
            for turn, i in enumerate(order):
                owned = turn % 2 == 0
                with torch.inference_mode(turn % 3 == 0):
                    result = model.generate(PROMPTS[i], **GREEDY, return_dict_in_generate=owned)
                if owned:
                    for layer in result.past_key_values.layers:
                        layer.keys.fill_(7.0)
                        layer.values.fill_(7.0)
                assert torch.equal(result.sequences if owned else result, expected[i])
                if turn % 5 == 0:
                    engine.writer.flush()
            return True

        with ThreadPoolExecutor(2) as pool:
            assert all(pool.map(work, range(2)))
        found = kept(settle(model).preparer.cache)
        counts = engine.counters.snapshot()
        assert counts.get("put_failures", 0) == counts.get("fallbacks", 0) == 0
        assert counts["tokens_prefix"] > 0
    assert found.keys() == right.keys()
    for key, tensors in found.items():
        for ours, theirs in zip(tensors, right[key], strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def test_with_every_request_audited_nothing_fails():
    policy = ReusePolicy(repair="query", recompute_ratio=0.5, audit_rate=1.0, worth_it=False)
    with boosted(cache=SlowPuts(), policy=policy) as model:
        engine = model.kvboost_engine

        def work(seed):
            order = list(range(len(PROMPTS))) * 2
            random.Random(seed).shuffle(order)
            for i in order:
                result = model.generate(PROMPTS[i], **GREEDY)
                assert torch.equal(result[:, : PROMPTS[i].shape[1]], PROMPTS[i])
                engine.audit.flush(30.0)
            return True

        with ThreadPoolExecutor(2) as pool:
            assert all(pool.map(work, range(2)))
        settle(model)
        engine.audit.flush()
        counts = engine.counters.snapshot()
        assert counts.get("put_failures", 0) == counts.get("fallbacks", 0) == counts.get("audit_failures", 0) == 0
        assert counts["audits"] > 0
        assert all(record.difference.kl_first < float("inf") for record in engine.audit.log.records())
