"""The choice of the next token, over prompts and answers of any length."""

import torch

from kvboost.runtime.batching.sampler import Sampler
from kvboost.sampling import Sampling
from tests.tiny_models import VOCAB_SIZE, random_ids, tiny_model

PENALTY = Sampling(temperature=0.0, repetition_penalty=1.7)


def test_what_was_said_before_counts_however_long_the_answer_gets(monkeypatch):
    model, prompt = tiny_model("llama"), random_ids(5)[0].tolist()
    sampler = Sampler(model, PENALTY, prompt)
    assert not sampler.plain
    known = set(prompt)
    made = []
    monkeypatch.setattr(torch, "tensor", lambda *args, **kwargs: made.append(args))
    for step in range(300):  # well beyond the room that is made at first
        logits = torch.rand(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(step)) + 1.0
        expected = logits.clone()
        expected[0, sorted(known)] /= 1.7
        token = sampler.choose(logits)
        assert token == int(expected.argmax())
        sampler.note(token)
        known.add(token)
    assert made == []  # ids are not turned into a tensor again for every token
