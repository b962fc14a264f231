"""A boost() that fails, at whichever step, leaves model, threads and caches as they were."""

import threading

import pytest
import torch

from kvboost import api
from kvboost.api import boost, engine_of, unboost
from kvboost.errors import CacheUnavailableError, InputError, KVBoostError
from kvboost.index import LocalCache
from tests.boosting import new_cache, plain, prompt, segmenter, tokenizer
from tests.tiny_models import tiny_model

STEPS = [
    "load",
    "check_tenant",
    "build_segmenter",
    "examine",
    "use_grouped",
    "Identity",
    "pass_startup_check",
    "calibrated",
    "Costs",
    "build_cache",
    "SlabPool",
    "Preparer",
    "Follower",
    "Engine",
]
TEXT = prompt("Water runs to the river. " * 4)


def marks_of(model):
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
    training = [module.training for module in model.modules()]
    return set(vars(model)), hooks, training, model.config._attn_implementation


@pytest.mark.parametrize("error", [RuntimeError, KVBoostError, KeyboardInterrupt], ids=lambda each: each.__name__)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_leaves_nothing_behind(step, error, monkeypatch):
    model = tiny_model("llama").train()
    before, threads = marks_of(model), set(threading.enumerate())

    def fail(*args, **kwargs):
        raise error("at this step")

    with monkeypatch.context() as patched:
        patched.setattr(api, step, fail)
        with pytest.raises(error, match="at this step"):
            boost(model, tokenizer())
    assert marks_of(model) == before
    assert set(threading.enumerate()) <= threads
    boost(model.eval(), tokenizer(), new_cache(), segmenter=segmenter())
    assert torch.equal(model.generate(TEXT, do_sample=False), plain(model, TEXT, do_sample=False))
    unboost(model)


@pytest.mark.parametrize("given", [True, False], ids=["given", "own"])
def test_a_cache_that_refuses_is_closed_only_if_it_is_ours(given, monkeypatch):
    closed = []
    monkeypatch.setattr(LocalCache, "close", lambda self: closed.append(self))

    def refuse(self, namespace):
        raise CacheUnavailableError("it is away")

    monkeypatch.setattr(LocalCache, "open", refuse)
    model = tiny_model("llama")
    before = marks_of(model)
    with pytest.raises(CacheUnavailableError):
        boost(model, tokenizer(), new_cache() if given else None, segmenter=segmenter())
    assert len(closed) == (0 if given else 1)
    assert marks_of(model) == before


def test_boosting_twice_leaves_the_first():
    model = tiny_model("llama")
    boost(model, tokenizer(), new_cache(), segmenter=segmenter())
    engine = engine_of(model)
    with pytest.raises(InputError, match="boosted already"):
        boost(model, tokenizer(), new_cache())
    assert engine_of(model) is engine
    assert torch.equal(model.generate(TEXT, do_sample=False), plain(model, TEXT, do_sample=False))
    unboost(model)
