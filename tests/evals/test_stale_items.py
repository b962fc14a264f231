"""Near-duplicate documents: they differ in the fact alone, and the generator repeats itself by its seed."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals._stale_items import draw_values, make_item, make_items, place
from evals._stale_score import contains, judge
from evals._stale_templates import KINDS, LANGUAGES, TEMPLATES, Template, Values
from evals._stale_texts import language_of, read_texts
from kvboost.errors import InputError

_ALL = [(language, template) for language in LANGUAGES for template in TEMPLATES[language]]


def _arguments(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"prompts": None, "data": None, **given})


_OWN = read_texts(_arguments()).paragraphs


@pytest.mark.parametrize(("language", "template"), _ALL)
def test_templates_hold_one_value_and_do_not_give_it_away(language: str, template: Template) -> None:
    assert template.fact.count("{}") == 1
    assert bool(template.later) == (template.kind == "after_edit")
    for value in template.values.choices:
        assert not contains(template.prefix + " " + template.later, [value])
        assert template.kind == "negation" or not contains(template.question, [value])
    assert language_of(template.question) == language


def test_every_language_has_every_kind() -> None:
    assert {(language, t.kind) for language, t in _ALL} == {(a, b) for a in LANGUAGES for b in KINDS}


@settings(deadline=None, max_examples=60)
@given(case=st.sampled_from(_ALL), seed=st.integers(0, 10_000))
def test_versions_differ_in_the_value_alone(case: tuple[str, Template], seed: int) -> None:
    language, template = case
    item = make_item(template, language, _OWN[language], len, 300, random.Random(seed))
    old, new = item.old_forms[0], item.new_forms[0]
    assert old != new
    assert item.old_document.replace(template.fact.format(old), item.fact) == item.new_document
    assert item.new_document.count(item.fact) == 1
    told = judge(item.new_document, [old], [new])
    assert (told.old, told.new) == (False, True)
    assert item.new_document.index(item.fact) <= item.new_document.find(template.later or item.fact)
    assert not item.new_document.startswith(item.fact)


def test_the_same_seed_makes_the_same_items_with_kinds_in_turn() -> None:
    made = [list(make_items("en", 12, _OWN["en"], len, 300, random.Random(seed))) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    assert [item.kind for item in made[0]] == [*KINDS, *KINDS, *KINDS[:2]]


def test_all_kinds_of_change_are_drawn() -> None:
    values = Values(("York", "New York", "Oslo"))
    assert values.changes("York") == [["New York"], ["Oslo"]]
    assert values.changes("Oslo") == [["York", "New York"]]
    numbers = Values(("46", "48", "146", "31"))
    assert numbers.changes("46") == [["146"], ["48"], ["31"]]
    rng = random.Random(0)
    template = Template("name", "{}", "", "", values)
    assert {draw_values(template, rng) for _ in range(200)} >= {("York", "New York"), ("New York", "York")}


def test_the_dependent_sentence_stands_below_the_fact() -> None:
    text = ["One is here. Two is here.", "Three is here. Four is here. Five is here."]
    for at in range(10):
        for gap in range(10):
            made = place(text, "FACT.", "LATER.", "en", at / 10, gap / 10)
            assert 0 < made.index("FACT.") < made.index("LATER.")
            assert made.replace(" FACT.", "").replace(" LATER.", "") == "\n\n".join(text)


def test_paragraphs_that_hold_the_values_are_refused() -> None:
    template = Template("number", "It is {}.", "", "", Values(("46", "48")))
    with pytest.raises(InputError, match="46"):
        make_item(template, "en", ["There are 46 and 48 of them. And more."], len, 10, random.Random(0))


def test_own_paragraphs_are_prose_of_their_language() -> None:
    assert len(_OWN["en"]) > 100
    assert len(_OWN["zh"]) > 8
    for language, texts in _OWN.items():
        assert all(language_of(text) == language and "\n" not in text for text in texts)


def test_the_users_contexts_are_used(tmp_path: Path) -> None:
    english = "The house has many rooms, and each of them was painted in another colour by the owner. " * 2
    chinese = (
        "这座房子有很多房间，主人把每个房间都刷成了不同的颜色。房子后面还有一个很大的花园，种满了各种各样的花草树木。"
    )
    line = json.dumps({"contexts": [english, chinese], "question": "Which?"})
    (tmp_path / "p.jsonl").write_text(line, encoding="utf-8")
    texts = read_texts(_arguments(prompts=tmp_path / "p.jsonl"))
    assert texts.source == "--prompts"
    assert texts.paragraphs == {"en": [english.strip()], "zh": [chinese]}


def test_the_paragraphs_of_data_sets_are_used_with_their_source(tmp_path: Path) -> None:
    context = "The harbour was built by the town, and every ship that comes in has to pay for its place there. " * 2
    (tmp_path / "xquad").mkdir()
    (tmp_path / "xquad" / "SOURCE.txt").write_text("from somewhere, free", encoding="utf-8")
    question = {"question": "Who pays?", "answers": [{"text": "every ship"}]}
    records = {"data": [{"paragraphs": [{"context": context, "qas": [question]}]}]}
    (tmp_path / "xquad" / "xquad.en.json").write_text(json.dumps(records), encoding="utf-8")
    texts = read_texts(_arguments(data=tmp_path))
    assert texts.source == "from somewhere, free"
    assert texts.paragraphs == {"en": [context.strip()], "zh": []}
