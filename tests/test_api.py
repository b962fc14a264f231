"""boost() and unboost(): what goes on the model comes off it again; wrong input is refused in one sentence."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import PreTrainedTokenizer

from kvboost.api import boost, engine_of, unboost
from kvboost.config import Config, EmbedderConfig
from kvboost.errors import (
    CacheUnavailableError,
    ConfigError,
    InputError,
    KVBoostError,
    ModelSupportError,
    PolicyError,
    PromptError,
    TokenizerError,
)
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.types import Tier
from tests.boosting import GREEDY, boosted, document, new_cache, plain, prompt, reused, settle, tokenizer, warm
from tests.tiny_models import MAX_POSITION, random_ids, tiny_model

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


@pytest.mark.parametrize("act", [unboost, engine_of])
def test_a_model_that_is_not_boosted_is_refused(act):
    with pytest.raises(InputError, match="not boosted"):
        act(tiny_model("llama"))


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


class SlowTokenizer(PreTrainedTokenizer):
    @property
    def vocab_size(self):
        return 10

    def get_vocab(self):
        return {}

    def _tokenize(self, text, **kwargs):
        return []


def test_a_tokenizer_without_offsets_is_refused():
    model = tiny_model("llama")
    with pytest.raises(TokenizerError, match="offsets"):
        boost(model, SlowTokenizer(), new_cache(), config=Config())
    assert not hasattr(model, "kvboost_engine")


def test_a_model_that_cannot_be_cached_is_refused_and_left_alone():
    model = tiny_model("mamba")
    attributes = set(vars(model))
    with pytest.raises(ModelSupportError, match="recurrent"):
        boost(model, tokenizer(), new_cache(), config=Config())
    assert set(vars(model)) == attributes


def test_a_closed_cache_is_refused_and_leaves_the_model_alone():
    cache = new_cache()
    cache.close()
    model = tiny_model("llama")
    with pytest.raises(CacheUnavailableError):
        boost(model, tokenizer(), cache, config=Config())
    assert not hasattr(model, "kvboost_engine")
    assert "generate" not in vars(model)


@pytest.mark.parametrize("address", ["nonsense", "host:port", "unix:"])
def test_a_wrong_address_is_refused(address):
    with pytest.raises((ConfigError, InputError)):
        boost(tiny_model("llama"), tokenizer(), address, config=Config())


def test_nobody_listening_is_told_at_boost():
    with pytest.raises(CacheUnavailableError):
        boost(tiny_model("llama"), tokenizer(), "127.0.0.1:1", config=Config())


def test_a_missing_configuration_file_is_refused():
    with pytest.raises(ConfigError, match=r"no_such\.toml"):
        boost(tiny_model("llama"), tokenizer(), new_cache(), config="no_such.toml")


def test_a_threshold_outside_0_to_1_is_refused():
    with pytest.raises(PolicyError, match="threshold"):
        ReusePolicy(threshold=1.2)


@pytest.mark.parametrize(
    "inputs",
    [
        torch.empty((1, 0), dtype=torch.long),
        torch.empty((0, 4), dtype=torch.long),
        torch.tensor([1, 2, 3]),
        None,
    ],
    ids=["no tokens", "no rows", "one dimension", "nothing"],
)
def test_an_empty_prompt_is_refused(inputs):
    with boosted() as model, pytest.raises(PromptError, match="input_ids"):
        model.generate(inputs, **GREEDY)


def test_a_prompt_of_the_context_length_is_served_and_a_longer_one_refused():
    with boosted() as model:
        ids = random_ids(MAX_POSITION + 1)
        full = ids[:, :MAX_POSITION]
        for _ in range(2):
            assert torch.equal(model.generate(full, **GREEDY), plain(model, full, **GREEDY))
            settle(model)
        assert reused(model, Tier.PREFIX) == MAX_POSITION - 1
        with pytest.raises(PromptError, match=f"{MAX_POSITION + 1} tokens.*holds {MAX_POSITION}"):
            model.generate(ids, **GREEDY)


def test_a_prompt_of_one_token():
    ids = torch.tensor([[9]])
    with boosted() as model:
        for _ in range(2):
            assert torch.equal(model.generate(ids, **GREEDY), plain(model, ids, **GREEDY))
            settle(model)
        assert model.last_reuse.prompt_tokens == model.last_reuse.tokens_by_tier[Tier.COMPUTED] == 1


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


def test_every_error_is_one_of_ours():
    for error in (PromptError, PolicyError, ModelSupportError, TokenizerError, CacheUnavailableError):
        assert issubclass(error, KVBoostError)


def test_warm_calls_give_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with boosted() as model:
            for _ in range(2):
                model.generate(IDS, attention_mask=torch.ones_like(IDS), **GREEDY)
                settle(model)
