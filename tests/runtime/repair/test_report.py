"""What repair did, and what it could not do, is in the report."""

import pytest

from kvboost.api import boost, engine_of, unboost
from kvboost.index import LocalCache
from kvboost.policy import REPAIRS, ReusePolicy
from tests.tiny_models import tiny_model, tiny_tokenizer

FIRST = "the old city stood near the great water and the people of the country came there every year again.\n\n"
SECOND = "the small children saw the white light in the night and thought about the story of the river.\n\n"
QUESTION = "where does the family live?"


@pytest.fixture(scope="module")
def reordered():
    """Return an engine that knows both paragraphs, and the prompt with them in another order."""
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    cache = LocalCache()
    boost(model, tokenizer, cache=cache)
    engine = engine_of(model)
    engine.generate(_ids(tokenizer, FIRST + SECOND + QUESTION), max_new_tokens=1, pad_token_id=0)
    yield engine, _ids(tokenizer, SECOND + FIRST + QUESTION)
    unboost(model)
    cache.close()


def _ids(tokenizer, text):
    return tokenizer(text, return_tensors="pt").input_ids


def _report(reordered, **policy):
    engine, prompt = reordered
    return engine.generate(prompt, max_new_tokens=1, pad_token_id=0, policy=ReusePolicy(**policy))[1]


@pytest.mark.parametrize("name", [name for name in REPAIRS if name not in ("none", "random")])
def test_a_budget_that_pays_for_no_pass_is_reported(reordered, name):
    report = _report(reordered, repair=name, recompute_ratio=0.02)
    assert report.reused_tokens > 60
    assert report.recomputed_tokens <= 1
    assert report.recompute_ratio <= 0.02
    assert any("budget" in reason for reason in report.declined)


@pytest.mark.parametrize("name", [name for name in REPAIRS if name != "none"])
def test_repair_is_charged_and_stays_within_its_ratio(reordered, name):
    report = _report(reordered, repair=name, recompute_ratio=0.9, head_tokens=8)
    donated = report.reused_tokens + report.recomputed_tokens
    assert 0 < report.recomputed_tokens <= report.recompute_ratio * donated + 1e-6
    assert report.recompute_ratio <= 0.9


def test_no_repair_asked_for_is_nothing_declined(reordered):
    assert _report(reordered, repair="none").declined == ()
    assert _report(reordered, repair="query", recompute_ratio=0.0).declined == ()
