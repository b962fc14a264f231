"""What boost() and generate() refuse, each in one sentence, and what is just within bounds."""

from functools import partial

import pytest
import torch
from transformers import PreTrainedTokenizer

from kvboost.api import boost, engine_of, unboost
from kvboost.config import Config
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
from kvboost.policy import ReusePolicy
from kvboost.types import Tier
from tests.boosting import GREEDY, boosted, new_cache, plain, reused, settle, tokenizer
from tests.tiny_models import MAX_POSITION, random_ids, tiny_model


@pytest.mark.parametrize("act", [unboost, engine_of])
def test_a_model_that_is_not_boosted_is_refused(act):
    with pytest.raises(InputError, match="not boosted"):
        act(tiny_model("llama"))


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


class Unreachable:
    closed = False

    def open(self, namespace):
        raise CacheUnavailableError("gone")

    def close(self):
        self.closed = True


def test_a_cache_of_its_own_that_cannot_be_opened_is_closed(monkeypatch):
    store = Unreachable()
    monkeypatch.setattr("kvboost.api.build_cache", lambda *args: store)
    with pytest.raises(CacheUnavailableError):
        boost(tiny_model("llama"), tokenizer(), config=Config())
    assert store.closed
    store.closed = False
    with pytest.raises(CacheUnavailableError):
        boost(tiny_model("llama"), tokenizer(), store, config=Config())
    assert not store.closed


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


def outcome(generate, *args, **kwargs):
    """Return what a call gives, or the error that it raises."""
    try:
        return generate(*args, **kwargs).tolist()
    except Exception as error:  # noqa: BLE001 - which one is what is compared
        return type(error), str(error)


@pytest.mark.parametrize(
    "inputs",
    [
        None,
        torch.tensor([1, 2, 3]),
        torch.empty((1, 0), dtype=torch.long),
        torch.empty((0, 4), dtype=torch.long),
        torch.ones((1, 2, 2), dtype=torch.long),
        torch.ones((1, 4)),
        torch.tensor([[5, -1, 6]]),
        [[1, 2, 3]],
        torch.full((1, 4), 7, dtype=torch.int32),
    ],
    ids=[
        "nothing",
        "one dimension",
        "no tokens",
        "no rows",
        "three dimensions",
        "no integers",
        "below 0",
        "a list",
        "int32",
    ],
)
def test_odd_inputs_go_as_with_the_plain_model(inputs):
    with boosted() as model:
        assert outcome(model.generate, inputs, **GREEDY) == outcome(partial(plain, model), inputs, **GREEDY)


@pytest.mark.parametrize("first", [True, False])
def test_a_row_that_is_all_padding_fails_no_other(first):
    ids = torch.stack([random_ids(40)[0], torch.zeros(40, dtype=torch.long)])
    ids = ids.flip(0) if first else ids
    mask = (ids != 0).long()
    with boosted() as model:
        expected = plain(model, ids, attention_mask=mask, **GREEDY)
        assert torch.equal(model.generate(ids, attention_mask=mask, **GREEDY), expected)
        assert model.last_reuse.declined == ("a row of the batch is all padding",)


def test_a_prompt_of_the_context_length_is_served_and_a_longer_one_left_to_the_model():
    with boosted() as model:
        ids = random_ids(MAX_POSITION + 1)
        full = ids[:, :MAX_POSITION]
        for _ in range(2):
            assert torch.equal(model.generate(full, **GREEDY), plain(model, full, **GREEDY))
            settle(model)
        assert reused(model, Tier.PREFIX) == MAX_POSITION - 1
        assert torch.equal(model.generate(ids, **GREEDY), plain(model, ids, **GREEDY))
        (reason,) = model.last_reuse.declined
        assert reason == f"the prompt has {MAX_POSITION + 1} tokens, the model's context holds {MAX_POSITION}"


def test_a_prompt_of_one_token():
    ids = torch.tensor([[9]])
    with boosted() as model:
        for _ in range(2):
            assert torch.equal(model.generate(ids, **GREEDY), plain(model, ids, **GREEDY))
            settle(model)
        assert model.last_reuse.prompt_tokens == model.last_reuse.tokens_by_tier[Tier.COMPUTED] == 1


def test_every_error_is_one_of_ours():
    for error in (PromptError, PolicyError, ModelSupportError, TokenizerError, CacheUnavailableError):
        assert issubclass(error, KVBoostError)
