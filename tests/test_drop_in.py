"""Every feature of generate(): a boosted model gives what the plain one gives, without and with a reused prefix."""

import copy
import warnings

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList
from transformers.generation.logits_process import MinLengthLogitsProcessor
from transformers.generation.stopping_criteria import StopStringCriteria

from kvboost.policy import ReusePolicy
from tests.boosting import boosted, document, plain, prompt, settle, tokenizer
from tests.tiny_models import tiny_model

ARCHS = {
    "llama": {},
    "qwen2": {},
    "gemma2": {},
    "gemma3": {},
    "mistral": {"sliding_window": 32},
}
SHARED = document(1, sentences=5)
# A prefix of some 170 tokens that is stored, and prompts that go on from it.
FIRST = prompt(SHARED, question="Who said so?")
LONG = prompt(SHARED, document(2, sentences=1))
SHORT = prompt(SHARED, question="What did the children say?")
ALONE = prompt(document(3, sentences=2))


def padded(*rows):
    width = max(row.shape[1] for row in rows)
    ids = torch.cat([torch.nn.functional.pad(row, (width - row.shape[1], 0)) for row in rows])
    mask = torch.cat([torch.nn.functional.pad(torch.ones_like(row), (width - row.shape[1], 0)) for row in rows])
    return {"inputs": ids, "attention_mask": mask}


class Streamer:
    def __init__(self):
        self.got = []

    def put(self, value):
        self.got.append(value.flatten().tolist())

    def end(self):
        self.got.append("end")


GREEDY = {"do_sample": False, "max_new_tokens": 8}
EVERYTHING = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
SAMPLED = {"do_sample": True, "temperature": 1.5, "top_k": 40, "top_p": 0.9, "max_new_tokens": 8}

CALLS = {
    "greedy": lambda: {"inputs": LONG, **GREEDY},
    "input_ids by name": lambda: {"input_ids": LONG, "attention_mask": torch.ones_like(LONG), **GREEDY},
    "generation config": lambda: {
        "inputs": LONG,
        "generation_config": GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=2, pad_token_id=0),
    },
    "sampled": lambda: {"inputs": LONG, **SAMPLED},
    "sampled rows": lambda: {**padded(LONG, SHORT), **SAMPLED},
    "returned sequences": lambda: {"inputs": LONG, **SAMPLED, "num_return_sequences": 3},
    "beams": lambda: {"inputs": LONG, **GREEDY, "num_beams": 3, "num_return_sequences": 2},
    "sampled beams": lambda: {"inputs": LONG, **SAMPLED, "num_beams": 2},
    "rows of beams": lambda: {**padded(LONG, SHORT), **GREEDY, "num_beams": 2},
    "padded rows": lambda: {**padded(LONG, ALONE, SHORT), **GREEDY},
    "padded row": lambda: {
        "inputs": torch.nn.functional.pad(LONG, (5, 0)),
        "attention_mask": torch.nn.functional.pad(torch.ones_like(LONG), (5, 0)),
        **GREEDY,
    },
    "streamer": lambda: {"inputs": LONG, **GREEDY, "streamer": Streamer()},
    "stopping criteria": lambda: {
        "inputs": LONG,
        **GREEDY,
        "stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(LONG.shape[1] + 3)]),
    },
    "stop strings": lambda: {
        "inputs": LONG,
        **GREEDY,
        "stopping_criteria": StoppingCriteriaList([StopStringCriteria(tokenizer(), ["e", " the"])]),
    },
    "logits processors": lambda: {
        "inputs": LONG,
        **GREEDY,
        "logits_processor": LogitsProcessorList([MinLengthLogitsProcessor(LONG.shape[1] + 6, 2)]),
    },
    "everything returned": lambda: {"inputs": LONG, **GREEDY, **EVERYTHING},
    "everything returned for rows": lambda: {**padded(LONG, SHORT), **GREEDY, **EVERYTHING},
    "everything returned for beams": lambda: {"inputs": LONG, **GREEDY, **EVERYTHING, "num_beams": 2},
    "minimum and maximum length": lambda: {
        "inputs": LONG,
        "do_sample": False,
        "min_length": LONG.shape[1] + 4,
        "max_length": LONG.shape[1] + 6,
    },
    "repetition penalty": lambda: {"inputs": LONG, **GREEDY, "repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
    "bad words and forced end": lambda: {
        "inputs": LONG,
        **GREEDY,
        "bad_words_ids": [[7], [9]],
        "forced_eos_token_id": 2,
    },
    "one new token": lambda: {"inputs": LONG, "do_sample": False, "max_new_tokens": 1},
    "without a cache": lambda: {"inputs": LONG, **GREEDY, "use_cache": False},
    "the plain cache asked for": lambda: {"inputs": LONG, **GREEDY, "cache_implementation": "dynamic"},
}


@pytest.fixture(scope="module", params=ARCHS)
def model(request):
    with boosted(
        model=tiny_model(request.param, **ARCHS[request.param]),
        policy=ReusePolicy(tiers=("prefix",), worth_it=False, audit_rate=0.0),
    ) as model:
        yield model


def assert_equal(found, expected):
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
        return
    assert set(found) == set(expected)
    assert torch.equal(found.sequences, expected.sequences)
    for name in ("logits", "scores"):
        for ours, theirs in zip(found[name], expected[name], strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=2e-3)


def ask(generate, call):
    arguments = call()
    torch.manual_seed(11)
    return generate(**arguments), arguments.get("streamer")


@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_that_of_the_plain_model(model, name):
    expected, heard = ask(lambda **arguments: plain(model, **arguments), CALLS[name])
    model.generate(FIRST, **GREEDY)
    for mode in (torch.enable_grad, torch.inference_mode):
        settle(model)
        with mode(), warnings.catch_warnings():
            warnings.filterwarnings("error", category=UserWarning, module="kvboost")
            found, told = ask(model.generate, CALLS[name])
        assert_equal(found, expected)
        assert (told is None) == (heard is None)
        if told is not None:
            assert told.got == heard.got
        report = model.last_reuse
        assert report.fallback is None
        assert (report.reused_tokens > 100) == (not report.declined)
        assert bool(report.declined) == (name in ("without a cache", "the plain cache asked for"))


GOING_ON = {
    "as it is": lambda cache: cache,
    "copied": copy.deepcopy,
    "cropped": lambda cache: (cache.crop(-3), cache)[1],
    "chosen rows": lambda cache: (cache.batch_select_indices(torch.arange(cache.layers[0].keys.shape[0])), cache)[1],
}


@pytest.mark.parametrize("rows", ["one", "padded"])
@pytest.mark.parametrize("name", GOING_ON)
def test_going_on_from_the_returned_cache(model, name, rows):
    if name == "cropped" and model.config.model_type in ("gemma2", "gemma3_text", "mistral"):
        pytest.skip("the plain cache of a layer with a window cannot be cropped")
    model.generate(FIRST, **GREEDY)
    settle(model)
    first = {**(padded(LONG, SHORT) if rows == "padded" else {"inputs": LONG}), **GREEDY, **EVERYTHING}
    more = SHORT[:, -6:]
    results = []
    for generate in (lambda **arguments: plain(model, **arguments), model.generate):
        given = generate(**first)
        ids = torch.cat([given.sequences, more.repeat(len(given.sequences), 1)], dim=1)
        mask = torch.ones_like(ids)
        if rows == "padded":
            mask[:, : first["attention_mask"].shape[1]] = first["attention_mask"]
        cache = GOING_ON[name](given.past_key_values)
        results.append(generate(inputs=ids, attention_mask=mask, cache=cache, **GREEDY, **EVERYTHING))
    assert_equal(results[1], results[0])
    assert "cache" in model.last_reuse.declined[0]
