"""boost() and unboost(): what goes on the model comes off it again, and calls in between keep to themselves."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kvboost.api import boost, engine_of, unboost
from kvboost.config import Config, EmbedderConfig
from kvboost.errors import (
    CacheUnavailableError,
    InputError,
)
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.types import Tier
from tests.boosting import GREEDY, boosted, document, new_cache, plain, prompt, reused, settle, tokenizer, warm
from tests.tiny_models import tiny_model

IDS = prompt(document(1), document(2))


def test_boost_returns_the_same_model_and_unboost_restores_it():
    model = tiny_model("llama")
    attributes, hooks = set(vars(model)), (len(model._forward_hooks), len(model._forward_pre_hooks))
    expected = model.generate(IDS, **GREEDY)
    assert boost(model, tokenizer(), new_cache()) is model
    assert torch.equal(model.generate(IDS, **GREEDY), expected)
    assert unboost(model) is model
    assert set(vars(model)) == attributes
    assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == hooks
    assert model.generate.__func__ is type(model).generate
    assert torch.equal(model.generate(IDS, **GREEDY), expected)


def test_boosting_twice_is_refused_and_harms_nothing():
    with boosted() as model:
        engine = engine_of(model)
        with pytest.raises(InputError, match="boosted already"):
            boost(model, tokenizer(), new_cache())
        assert engine_of(model) is engine
        model.generate(IDS, **GREEDY)


def test_it_can_be_boosted_again_after_unboost():
    model, cache = tiny_model("llama"), new_cache()
    for _ in range(2):
        boost(model, tokenizer(), cache)
        model.generate(IDS, **GREEDY)
        unboost(model)
    boost(model, tokenizer(), cache)
    model.generate(IDS, **GREEDY)
    assert reused(model, Tier.PREFIX) == IDS.shape[1] - 1
    unboost(model)


def test_unboost_stores_what_is_pending():
    cache = new_cache()
    with boosted(cache=cache) as model:
        model.generate(IDS, **GREEDY)
    assert cache.stats().namespaces[0].chunks > 0


def test_the_callers_cache_stays_open_and_the_engines_own_is_closed():
    cache = new_cache()
    with boosted(cache=cache):
        pass
    cache.stats()
    model = boost(tiny_model("llama"), tokenizer(), config=Config(embedder=EmbedderConfig(model="none")))
    own = engine_of(model).preparer.cache
    assert isinstance(own, LocalCache)
    unboost(model)
    with pytest.raises(CacheUnavailableError):
        own.stats()


def test_last_reuse_is_none_before_the_first_call():
    with boosted() as model:
        assert model.last_reuse is None


def test_tenants_share_nothing():
    cache, model = new_cache(), tiny_model("llama")
    for tenant in ("a", "b"):
        boost(model, tokenizer(), cache, tenant=tenant)
        model.generate(IDS, **GREEDY)
        assert model.last_reuse.reused_tokens == 0
        unboost(model)
    boost(model, tokenizer(), cache, tenant="a")
    model.generate(IDS, **GREEDY)
    assert reused(model, Tier.PREFIX) == IDS.shape[1] - 1
    unboost(model)


def test_two_models_share_a_cache_without_mixing():
    cache = new_cache()
    with boosted(cache=cache) as one, boosted("qwen2", cache=cache) as two:
        for model in (one, two):
            expected = plain(model, IDS, **GREEDY)
            for _ in range(2):
                assert torch.equal(model.generate(IDS, **GREEDY), expected)
                settle(model)
        assert len(cache.stats().namespaces) == 2


def test_a_policy_for_one_call():
    with boosted() as model:
        warm(model, IDS)
        model.generate(IDS, policy=ReusePolicy(tiers=()), **GREEDY)
        assert model.last_reuse.reused_tokens == 0
        model.generate(IDS, **GREEDY)
        assert model.last_reuse.reused_tokens == IDS.shape[1] - 1


def test_a_chat_of_three_turns_reuses_the_turns_before():
    chat = [{"role": "system", "content": document(1)}]
    previous = 0
    with boosted() as model:
        for turn in range(3):
            chat.append({"role": "user", "content": document(10 + turn, sentences=1)})
            ids = tokenizer().apply_chat_template(
                chat, add_generation_prompt=True, return_tensors="pt", return_dict=False
            )
            expected = plain(model, ids, **GREEDY)
            result = model.generate(ids, **GREEDY)
            assert torch.equal(result, expected)
            chat.append({"role": "assistant", "content": document(20 + turn, sentences=1)})
            settle(model)
            assert reused(model, Tier.PREFIX) > previous - 10
            previous = ids.shape[1]


def test_two_threads_on_one_model_get_their_own_answers():
    prompts = [prompt(document(i), document(i + 1), document(i + 2)) for i in range(4)]
    with boosted(policy=ReusePolicy(tiers=("prefix",))) as model:
        expected = [plain(model, ids, **GREEDY) for ids in prompts]

        def work(number):
            return [model.generate(prompts[(number + i) % 4], **GREEDY) for i in range(6)]

        with ThreadPoolExecutor(2) as pool:
            for number, results in enumerate(pool.map(work, range(2))):
                for i, result in enumerate(results):
                    assert torch.equal(result, expected[(number + i) % 4])


def test_warm_calls_give_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with boosted() as model:
            for _ in range(2):
                model.generate(IDS, attention_mask=torch.ones_like(IDS), **GREEDY)
                settle(model)
