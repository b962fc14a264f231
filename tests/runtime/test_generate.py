"""``generate()`` after boost() against the class's own, over a warm cache of lossless prefixes."""

import inspect

import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from kvboost.policy import ReusePolicy
from kvboost.runtime.serve.call import _POSITIONAL
from kvboost.types import Tier
from tests.boosting import boosted, document, plain, prompt, reused, tokenizer, warm

PREFIX = [document(1), document(2)]
WARM = prompt(*PREFIX, document(3))
IDS = prompt(*PREFIX, document(4))


@pytest.fixture(scope="module")
def model():
    with boosted(policy=ReusePolicy(tiers=("prefix",))) as model:
        warm(model, WARM)
        yield model


def assert_same(model, *args, seed=0, **kwargs):
    """Compare boosted and plain outputs; the boosted run must have reused a lossless prefix, and nothing else."""
    torch.manual_seed(seed)
    expected = plain(model, *args, **kwargs)
    torch.manual_seed(seed)
    result = model.generate(*args, **kwargs)
    assert reused(model, Tier.PREFIX) > 100
    assert model.last_reuse.lossless
    assert type(result) is type(expected)
    sequences = result if isinstance(result, torch.Tensor) else result.sequences
    assert torch.equal(sequences, expected if isinstance(expected, torch.Tensor) else expected.sequences)
    return result, expected


CALLS = {
    "greedy": {"do_sample": False, "max_new_tokens": 16},
    "sampling": {"do_sample": True, "temperature": 0.8, "max_new_tokens": 16},
    "top_k and top_p": {"do_sample": True, "top_k": 20, "top_p": 0.9, "max_new_tokens": 16},
    "beams": {"num_beams": 3, "do_sample": False, "max_new_tokens": 16},
    "all beams": {"num_beams": 3, "num_return_sequences": 3, "do_sample": False, "max_new_tokens": 16},
    "sampled beams": {"num_beams": 2, "do_sample": True, "max_new_tokens": 12},
    "two samples": {"num_return_sequences": 2, "do_sample": True, "max_new_tokens": 16},
    "one token": {"do_sample": False, "max_new_tokens": 1},
    "max_length": {"do_sample": False, "max_length": IDS.shape[1] + 9},
    "min_new_tokens": {"do_sample": False, "min_new_tokens": 8, "max_new_tokens": 12},
    "penalties": {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "max_new_tokens": 16},
    "bad words": {"do_sample": False, "bad_words_ids": [[5], [77]], "max_new_tokens": 8},
    "other end token": {"do_sample": False, "eos_token_id": list(range(3, 300)), "max_new_tokens": 16},
    "generation config": {"generation_config": GenerationConfig(max_new_tokens=7, do_sample=False, pad_token_id=0)},
    "config and argument": {"generation_config": GenerationConfig(max_new_tokens=7), "max_new_tokens": 3},
    "attention mask": {"do_sample": False, "max_new_tokens": 8, "attention_mask": torch.ones_like(IDS)},
}


@pytest.mark.parametrize("name", CALLS)
def test_gives_what_the_plain_call_gives(model, name):
    assert_same(model, IDS, **CALLS[name])


@pytest.mark.parametrize("seed", range(4))
def test_sampling_draws_the_same_tokens_under_the_same_seed(model, seed):
    assert_same(model, IDS, seed=seed, do_sample=True, temperature=1.5, max_new_tokens=20)


def test_input_ids_as_keyword(model):
    assert_same(model, input_ids=IDS, do_sample=False, max_new_tokens=8)


def test_a_whole_batch_encoding(model):
    encoding = tokenizer()(tokenizer().decode(IDS[0]), return_tensors="pt", add_special_tokens=False)
    assert_same(model, **encoding, do_sample=False, max_new_tokens=8)


def test_positional_arguments(model):
    class Forbid(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores[:, 100:] = float("-inf")
            return scores

    config = GenerationConfig(max_new_tokens=9, do_sample=False)
    result, _ = assert_same(model, IDS, config, LogitsProcessorList([Forbid()]))
    assert (result[0, IDS.shape[1] :] < 100).all()


def test_every_position_is_named_as_transformers_names_it(model):
    names = list(inspect.signature(type(model).generate).parameters)
    assert tuple(names[2:-1]) == _POSITIONAL


def test_a_streamer_given_by_position_is_used(model):
    streamer = Collector()
    model.generate(IDS, GenerationConfig(max_new_tokens=3, do_sample=False), None, None, None, None, None, streamer)
    assert streamer.ended == 1


def test_wrong_positional_arguments_fail_as_before(model):
    for call in (model.generate, lambda *a, **k: plain(model, *a, **k)):
        with pytest.raises(TypeError, match="positional"):
            call(IDS, *[None] * 11)
        with pytest.raises(TypeError, match="multiple values"):
            call(IDS, None, generation_config=None)


def test_a_dict_with_scores_and_logits(model):
    result, expected = assert_same(
        model,
        IDS,
        do_sample=False,
        max_new_tokens=6,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    for ours, theirs in zip(result.logits + result.scores, expected.logits + expected.scores, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert set(result) == set(expected)
    assert result.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()


def test_the_returned_cache_is_the_callers_to_go_on_with(model):
    result = model.generate(IDS, do_sample=False, max_new_tokens=4, return_dict_in_generate=True)
    ids = torch.cat([result.sequences, result.sequences.new_tensor([[9, 10]])], dim=1)
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0, -1]
        length = result.past_key_values.get_seq_length()
        again = model(input_ids=ids[:, length:], cache=result.past_key_values, use_cache=True).logits[0, -1]
    torch.testing.assert_close(again, expected, atol=1e-4, rtol=1e-4)


def test_beam_scores(model):
    result, expected = assert_same(
        model, IDS, num_beams=3, do_sample=False, max_new_tokens=8, return_dict_in_generate=True, output_scores=True
    )
    torch.testing.assert_close(result.sequences_scores, expected.sequences_scores, atol=1e-4, rtol=1e-4)


class Collector(BaseStreamer):
    def __init__(self):
        self.values, self.ended = [], 0

    def put(self, value):
        self.values.append(value.clone())

    def end(self):
        self.ended += 1


def test_a_streamer_gets_the_same_pieces(model):
    ours, theirs = Collector(), Collector()
    plain(model, IDS, do_sample=False, max_new_tokens=8, streamer=theirs)
    model.generate(IDS, do_sample=False, max_new_tokens=8, streamer=ours)
    assert ours.ended == theirs.ended == 1
    assert [v.tolist() for v in ours.values] == [v.tolist() for v in theirs.values]


class StopAfter(StoppingCriteria):
    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


@pytest.mark.parametrize("criterion", [StopAfter(IDS.shape[1] + 3), MaxLengthCriteria(IDS.shape[1] + 3)])
def test_stopping_criteria(model, criterion):
    result, _ = assert_same(
        model, IDS, stopping_criteria=StoppingCriteriaList([criterion]), do_sample=False, max_new_tokens=30
    )
    assert result.shape[1] == IDS.shape[1] + 3


def test_a_practically_unlimited_answer_needs_no_memory_for_it(model):
    criteria = StoppingCriteriaList([StopAfter(IDS.shape[1] + 100)])
    result, _ = assert_same(model, IDS, stopping_criteria=criteria, do_sample=False, max_new_tokens=10**12)
    assert result.shape[1] <= IDS.shape[1] + 100


def test_stop_strings(model):
    answer = plain(model, IDS, do_sample=False, max_new_tokens=12)[0, IDS.shape[1] :]
    stop = tokenizer().decode(answer[3:5])
    assert_same(model, IDS, do_sample=False, max_new_tokens=12, stop_strings=[stop], tokenizer=tokenizer())


def test_a_prefix_constraint(model):
    allowed = list(range(50, 90))
    result, _ = assert_same(
        model, IDS, do_sample=False, max_new_tokens=6, prefix_allowed_tokens_fn=lambda batch, ids: allowed
    )
    assert all(t in allowed for t in result[0, IDS.shape[1] :].tolist())


def test_wrong_arguments_fail_as_before_and_the_next_call_works(model):
    with pytest.raises(ValueError, match="temperatur"):
        plain(model, IDS, do_sample=True, temperature=-1.0)
    with pytest.raises(ValueError, match="temperatur"):
        model.generate(IDS, do_sample=True, temperature=-1.0)
    with pytest.raises(ValueError, match="unknown_argument"):
        model.generate(IDS, unknown_argument=3, max_new_tokens=2)
    assert_same(model, IDS, do_sample=False, max_new_tokens=4)


@pytest.mark.parametrize("step", [1, 3])
def test_an_exception_inside_leaves_the_model_usable(model, step):
    class Fail(LogitsProcessor):
        calls = 0

        def __call__(self, input_ids, scores):
            self.calls += 1
            if self.calls == step:
                raise ZeroDivisionError
            return scores

    with pytest.raises(ZeroDivisionError):
        model.generate(IDS, logits_processor=LogitsProcessorList([Fail()]), do_sample=False, max_new_tokens=6)
    with torch.no_grad():
        model(input_ids=IDS[:, :5])
    assert_same(model, IDS, do_sample=False, max_new_tokens=4)


def test_under_inference_mode(model):
    with torch.inference_mode():
        assert_same(model, IDS, do_sample=False, max_new_tokens=4)
    assert_same(model, IDS, do_sample=False, max_new_tokens=4)


def test_no_gradients_are_kept(model):
    result = model.generate(IDS, do_sample=False, max_new_tokens=2, return_dict_in_generate=True, output_logits=True)
    assert not any(step.requires_grad for step in result.logits)
