"""Copies of a boosted model are plain models, and what is not generate() is left as it was."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch

from kvboost.api import boost, unboost
from tests.boosting import GREEDY, boosted, document, new_cache, plain, prompt, tokenizer, warm
from tests.tiny_models import tiny_model

IDS = prompt(document(1), document(2))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "deepcopy of what holds it": lambda model: copy.deepcopy(torch.nn.ModuleList([model]))[0],
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved,
}


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_the_plain_model(name, arch):
    bare = tiny_model(arch)
    own = tiny_model(arch)
    own.register_forward_hook(print_nothing)
    with boosted(model=own) as model:
        warm(model, IDS)
        copied = COPIES[name](model)
        assert set(vars(copied)) == set(vars(bare))
        assert copied.config._attn_implementation == bare.config._attn_implementation
        assert [*copied._forward_hooks.values()] == [print_nothing]
        assert len(copied._forward_pre_hooks) == 0
        assert copied.model.config is copied.config
        assert torch.equal(copied.generate(IDS, **GREEDY), plain(model, IDS, **GREEDY))
        # It lives on its own, and the boosted one too.
        with torch.no_grad():
            copied.get_input_embeddings().weight.zero_()
        assert torch.equal(model.generate(IDS, **GREEDY), plain(model, IDS, **GREEDY))
        assert model.last_reuse.reused_tokens > 0
    cache = new_cache()
    boost(copied, tokenizer(), cache)
    unboost(copied)


def print_nothing(module, args, output):
    """A hook of the user's own, which copies keep."""


def test_a_pickled_model_needs_no_kvboost():
    with boosted() as model:
        data = pickle.dumps(model)
    assert b"kvboost" not in data


def test_saving_and_loading_by_transformers(tmp_path):
    with boosted() as model:
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path)
        assert "kvboost" not in (tmp_path / "config.json").read_text()
        assert torch.equal(loaded.generate(IDS, **GREEDY), plain(model, IDS, **GREEDY))


def test_continuous_batching_of_transformers_goes_as_with_the_plain_model():
    prompts = [IDS[0].tolist(), IDS[0, :30].tolist()]

    def answers(model):
        outputs = model.generate_batch(prompts, max_new_tokens=4, warmup=False, generation_config=config)
        return [output.generated_tokens for output in outputs.values()]

    bare = tiny_model("llama")
    config = copy.deepcopy(bare.generation_config)
    config.do_sample = False
    expected = answers(bare)
    with boosted() as model:
        warm(model, IDS)
        assert answers(model) == expected
        assert torch.equal(model.generate(IDS, **GREEDY), plain(model, IDS, **GREEDY))
        assert model.last_reuse.reused_tokens > 0


FORKED = """
import os, sys, time, warnings
import torch
torch.set_num_threads(1)
from kvboost.api import unboost
from kvboost.errors import FallbackWarning
from tests.boosting import GREEDY, boosted, document, plain, prompt, settle
ids = prompt(document(1), document(2))
with boosted() as model:
    expected = plain(model, ids, **GREEDY)
    model.generate(ids, **GREEDY)
    engine = settle(model)
    # Locks stand as they happen to: here, all of them held.
    engine.counters._lock.acquire()
    (room,) = engine.preparer.cache._rooms.values()
    held = room.table(); held.__enter__()
    hold = engine.writer.held(); hold.__enter__()
    engine.writer.submit(lambda: None)
    pid = os.fork()
    if pid == 0:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            right = all(torch.equal(model.generate(ids, **GREEDY), expected) for _ in range(2))
        told = [str(w.message) for w in seen if issubclass(w.category, FallbackWarning)]
        declined = model.last_reuse.declined
        unboost(model)
        right = right and torch.equal(model.generate(ids, **GREEDY), expected)
        ok = right and len(told) == 2 and str(os.getppid()) in told[0] and "spawn" in declined[0]
        os._exit(0 if ok else 3)
    _, status = os.waitpid(pid, 0)
    engine.counters._lock.release(); held.__exit__(None, None, None)
    hold.__exit__(None, None, None)
    assert torch.equal(model.generate(ids, **GREEDY), expected)
    assert model.last_reuse.reused_tokens > 0
    print("child", os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system does not fork")
def test_a_forked_child_is_told_at_once_and_served_by_full_prefill():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.split() == ["child", "0"], done.stderr
