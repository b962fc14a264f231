"""K/V that are infinite or not a number: never stored, never lent, and no request suffers from another's."""

import warnings

import pytest
import torch

from kvboost.checksum import checksum
from kvboost.errors import FallbackWarning, NonFiniteError
from kvboost.policy import REPAIRS, ReusePolicy
from kvboost.runtime.kv.codec import pack, unpack
from kvboost.runtime.kv.finite import all_finite, without_distribution
from kvboost.runtime.kv.slab_pool import STEP_TOKENS
from kvboost.types import ChunkKV, KVLayout, Tier
from tests.boosting import GREEDY, boosted, document, new_cache, plain, prompt, reused, settle, step_logits, warm
from tests.faulty_cache import FaultyCache
from tests.tiny_models import VOCAB_SIZE, tiny_model

DOCS = [document(i) for i in range(5)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NAN, INF = float("nan"), float("inf")


def overflowing(dtype=torch.float32):
    """Return a model with one token whose K/V overflow, and prompts without and with it."""
    model = tiny_model("llama", dtype=dtype, seed=77)  # other tests' models keep verdicts of their own
    clean = [prompt(DOCS[0], DOCS[1]), prompt(DOCS[2], DOCS[1])]
    used = {1, *torch.cat(clean, dim=1).flatten().tolist()}
    token = next(i for i in range(VOCAB_SIZE - 1, 3, -1) if i not in used)
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = INF
    return model, clean, token


def stored(cache):
    namespace, ids = held(cache)
    return [(kv, namespace.layout) for kv in cache.fetch(namespace.key, ids)]


def held(cache):
    """Return the one namespace of a cache, and the ids of its chunks."""
    (room,) = cache._rooms.values()
    with room.table() as table:
        return table.namespace, [donor.chunk_id for donor in table.donors]


def ids_of(cache):
    return set(held(cache.inner)[1])


def poisoned(cache, layer, number=NAN):
    """Have one chunk of every fetch come with ``number`` in a layer, though its checksum is right."""

    def spoil(chunk):
        layout = held(cache.inner)[0].layout
        payload = bytearray(chunk.payload)
        _, values = unpack(memoryview(payload), layout, len(payload) // layout.token_bytes)
        values[layer, 0, 0] = number
        return ChunkKV(chunk.chunk_id, bytes(payload), checksum(payload))

    cache.on_fetch = spoil


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_is_looked_at(dtype):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 5, 7, generator=generator).to(dtype)
    assert all_finite(values)
    assert all_finite(torch.empty(0, dtype=dtype))
    assert all_finite(torch.full((40,), torch.finfo(dtype).max, dtype=dtype))  # their sum is not
    for at in (0, 52, 104):
        for number in (NAN, INF, -INF):
            broken = values.clone()
            broken.view(-1)[at] = number
            assert not all_finite(broken)
    assert not all_finite(torch.tensor([INF, -INF], dtype=dtype))


def test_a_token_that_is_ruled_out_does_not_break_a_distribution():
    logits = torch.tensor([[1.0, -INF], [NAN, 1.0], [1.0, 2.0], [INF, 1.0], [-INF, -INF]])
    assert without_distribution(logits) == [1, 3, 4]
    assert without_distribution(logits[[0, 2]].to(torch.float16)) == []


def test_packing_refuses_them():
    layout = KVLayout(2, 2, 4, 4, "float32")
    keys = torch.ones(2, 2, 3, 4)
    keys[1, 0, 2, 3] = NAN
    with pytest.raises(NonFiniteError, match="not stored"):
        pack(keys, torch.ones(2, 2, 3, 4), layout)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_request_that_overflows_leaves_nothing_behind(dtype):
    model, (first, second), token = overflowing(dtype)
    cache = new_cache()
    at = first.shape[1] // 2
    bad = torch.cat([first[:, :at], torch.tensor([[token]]), first[:, at:]], dim=1)
    with boosted(model=model, cache=cache, policy=ReusePolicy(worth_it=False)) as model:
        warm(model, bad)
        warm(model, first, second)
        for kv, layout in stored(cache):
            num_tokens = len(kv.payload) // layout.token_bytes
            assert all(bool(each.isfinite().all()) for each in unpack(memoryview(kv.payload), layout, num_tokens))
        for ids in (first, second):
            found, logits = step_logits(model, ids)
            expected, _ = step_logits(model, ids, plainly=True)
            assert model.last_reuse.reused_tokens > 0
            assert bool(logits.isfinite().all())
            if dtype is torch.float32:
                assert torch.equal(found, expected)
        assert settle(model).counters.snapshot()["non_finite_chunks"] > 0


@pytest.mark.parametrize(
    "policy", [ReusePolicy(worth_it=False, repair="none"), ReusePolicy(worth_it=False, tiers=("prefix",))]
)
def test_a_broken_donor_is_not_lent_and_is_evicted(policy):
    cache = FaultyCache(new_cache())
    ids = prompt(DOCS[1], DOCS[0]) if Tier.EXACT in policy.tiers else prompt(DOCS[0], DOCS[1])
    with boosted(cache=cache, policy=policy) as model:
        warm(model, prompt(DOCS[0], DOCS[1]))
        before = ids_of(cache)
        poisoned(cache, layer=-1)
        with pytest.warns(FallbackWarning, match="are not finite"):
            result = model.generate(ids, **GREEDY)
        cache.on_fetch = lambda chunk: chunk
        assert torch.equal(result, plain(model, ids, **GREEDY))
        assert "NonFiniteError" in model.last_reuse.fallback
        assert settle(model).counters.snapshot()["non_finite_chunks"] == 1
        assert len(before - ids_of(cache)) == 1
        model.generate(ids, **GREEDY)
        assert model.last_reuse.fallback is None
        assert model.last_reuse.reused_tokens > 0


class Streamer:
    def __init__(self):
        self.got, self.ended = [], 0

    def put(self, value):
        self.got.append(value.flatten().tolist())

    def end(self):
        self.ended += 1


CALLS = {
    "one": lambda ids: {},
    "sampled": lambda ids: {"do_sample": True, "max_new_tokens": 12},
    "streamed": lambda ids: {"streamer": Streamer()},
    "rows": lambda ids: {"attention_mask": torch.ones_like(ids)},
    "beams": lambda ids: {"num_beams": 2},
    "a cache of its own": lambda ids: {"return_dict_in_generate": True},
}


@pytest.mark.parametrize("number", [NAN, INF])
@pytest.mark.parametrize("name", CALLS)
def test_logits_that_reuse_breaks_mean_full_prefill(name, number):
    """What only the logits tell: the first layer of a donor is not finite, the last one is."""
    cache = FaultyCache(new_cache())
    ids = prompt(DOCS[2], DOCS[1], DOCS[0])
    with boosted(cache=cache, policy=ReusePolicy(worth_it=False, repair="none")) as model:
        warm(model, prompt(*DOCS[:3]))
        before = cache.stats().namespaces[0].chunks
        poisoned(cache, 0, number)
        cache.puts.clear()
        inputs = ids.repeat(2, 1) if name == "rows" else ids
        ours, theirs = ({**GREEDY, **CALLS[name](inputs)} for _ in range(2))
        torch.manual_seed(3)
        expected = plain(model, inputs, **theirs)
        torch.manual_seed(3)
        with pytest.warns(FallbackWarning, match="the logits over reused K/V are infinite or not a number"):
            found = model.generate(inputs, **ours)
        if name == "a cache of its own":
            found, expected = found.sequences, expected.sequences
        assert torch.equal(found, expected)
        if name == "streamed":
            assert (ours["streamer"].got, ours["streamer"].ended) == (theirs["streamer"].got, 1)
        assert model.last_reuse.reused_tokens == 0
        assert "BrokenLogitsError" in model.last_reuse.fallback
        counts = settle(model).counters.snapshot()
        assert counts["non_finite_logits"] == counts["fallbacks"] == 1
        assert cache.puts == []
        assert cache.stats().namespaces[0].chunks < before  # the donors are gone
        cache.on_fetch = lambda chunk: chunk
        warm(model, prompt(*DOCS[:3]))
        model.generate(ids, **GREEDY)
        assert reused(model, Tier.EXACT) > 0


def test_donors_are_not_blamed_for_a_prompt_that_overflows_by_itself():
    model, (first, _), token = overflowing()
    cache = new_cache()
    bad = torch.cat([first, torch.tensor([[token, 9, 12]])], dim=1)
    with boosted(model=model, cache=cache, policy=ReusePolicy(worth_it=False, tiers=("prefix",))) as model:
        warm(model, first)
        before = cache.stats().namespaces[0].chunks
        with pytest.warns(FallbackWarning, match="the logits over reused"):
            result = model.generate(bad, **GREEDY)
        assert torch.equal(result, plain(model, bad, **GREEDY))
        settle(model)
        assert cache.stats().namespaces[0].chunks == before
        model.generate(first, **GREEDY)
        assert reused(model, Tier.PREFIX) > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", ["llama", "gemma2"])
@pytest.mark.parametrize("repair", REPAIRS)
def test_memory_of_an_earlier_request_never_reaches_a_later_one(arch, dtype, repair):
    """Left full of NaN, it gives the answers of memory that is new: also where rows pad and tokens stand scattered."""
    policy = ReusePolicy(worth_it=False, repair=repair, recompute_ratio=0.4, audit_rate=0.0)
    model = tiny_model(arch, dtype=dtype)
    answers = []
    for poison in (False, True):
        with boosted(model=model, policy=policy), warnings.catch_warnings():
            warnings.simplefilter("error")
            warm(model, prompt(*DOCS[:3]))
            pool = settle(model).preparer.slabs
            given = []
            for ids in (prompt(DOCS[2], DOCS[3], DOCS[0]), prompt(DOCS[1], DOCS[4]), padded()):
                pool._spares.clear()
                if poison:
                    slabs = [pool.take(STEP_TOKENS) for _ in range(2)]
                    for slab in slabs:
                        slab.key_slab.fill_(NAN)
                        slab.value_slab.fill_(NAN)
                        pool.give(slab)
                mask = (ids != 0).long()
                result = model.generate(
                    ids, attention_mask=mask, **GREEDY, return_dict_in_generate=True, output_logits=True
                )
                given.append((result.sequences, torch.stack(result.logits)))
                settle(model)
            assert model.last_reuse.reused_tokens > 0
            answers.append(given)
    for (ids, logits), (poisoned_ids, poisoned_logits) in zip(*answers, strict=True):
        assert torch.equal(ids, poisoned_ids)
        assert torch.equal(logits, poisoned_logits)


def padded():
    long, short = prompt(DOCS[2], DOCS[3], DOCS[1]), prompt(DOCS[0])
    return torch.cat([long, torch.nn.functional.pad(short, (long.shape[1] - short.shape[1], 0))])
