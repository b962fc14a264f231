"""Edits, tasks and the choice of a setting."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals._documents import Document, own_documents
from evals._edits import KINDS, any_edit, edit
from evals._pareto import front, recommend
from evals._prompts import Question
from evals._tasks import Sizes, TaskMaker, make_tasks
from evals._variants import BUDGETS, core_variants, variants
from kvboost.policy import ReusePolicy
from kvboost.runtime.repair import STRATEGIES
from tests.tiny_models import tiny_tokenizer

TEXT = (
    "The limit is 30 requests in a minute, which all clients must keep when they call the service. "
    "Another sentence explains what happens, and nothing more is said here."
)


def _order(text: str, documents: Sequence[Document]) -> list[str]:
    return sorted((each.title for each in documents), key=lambda title: text.index(f"Document: {title}"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_edit_changes_one_place(kind: str) -> None:
    made = edit(TEXT, kind, random.Random(0))
    assert made is not None
    assert made.text != TEXT
    same = next(i for i, (a, b) in enumerate(zip(TEXT, made.text, strict=False)) if a != b)
    assert made.text[:same] == TEXT[:same]


def test_a_number_is_replaced_by_another_number() -> None:
    made = edit(TEXT, "number", random.Random(0))
    assert made is not None
    assert made.text.split()[3].isdigit()
    assert made.text.split()[3] != "30"


def test_a_text_without_a_place_for_an_edit_is_left_alone() -> None:
    assert any_edit("...", random.Random(0)) is None


def test_tasks_differ_from_their_donors_as_their_names_say() -> None:
    maker = TaskMaker(tiny_tokenizer(), Sizes(1, 3, 50), seed=0)
    documents = tuple(Document(f"d{i}", f"{TEXT} {i}") for i in range(3))
    question = Question(documents, "q", ("a",))
    decode = maker.tokenizer.decode
    reordered = maker.reordered("t", question, random.Random(0))
    orders = [_order(decode(list(ids)), documents) for ids in (reordered.donors[0], reordered.prompt)]
    assert orders[0] != orders[1]
    alone = maker.alone("t", question, random.Random(0))
    assert len(alone.donors) == 3
    edited = maker.edited("t", question, random.Random(0))
    assert sum(each.text in decode(list(edited.prompt)) for each in documents) == 2
    assert edited.answers == ("a",)


def test_a_question_over_one_document_needs_no_other_order() -> None:
    maker = TaskMaker(tiny_tokenizer(), Sizes(1, 1, 50), seed=0)
    assert maker.reordered("t", Question((Document("d", TEXT),), "q"), random.Random(0)).prompt


def test_the_seed_alone_decides_what_is_asked() -> None:
    def made(seed: int) -> list[tuple[int, ...]]:
        args = argparse.Namespace(seed=seed, prompts=None, data=None)
        tasks = make_tasks(tiny_tokenizer(), Sizes(2, 2, 60), args)
        return [item.prompt for task in tasks for item in task.items]

    assert made(0) == made(0)
    assert made(0) != made(1)


def test_own_documents_have_about_the_size_asked_for() -> None:
    tokenizer = tiny_tokenizer()
    documents = own_documents(tokenizer, 100)
    assert len(documents) > 30
    assert all(55 <= len(tokenizer.encode(each.text, add_special_tokens=False)) <= 115 for each in documents)


def test_every_strategy_runs_at_every_budget_beside_the_baselines() -> None:
    default = ReusePolicy()
    rows = [(each.repair, each.recompute_ratio) for each in variants(default, quick=False)]
    assert len(rows) == len(set(rows))
    for name in set(STRATEGIES) - {"none"}:
        for ratio in BUDGETS:
            assert (name, ratio) in rows
            assert (f"{name}, no shift", ratio) in rows
    assert {("none", 0.0), ("prefix only", 0.0), (default.repair, default.recompute_ratio)} <= set(rows)
    quick = variants(default, quick=True)
    assert {each.repair for each in core_variants(default)} == {"none", default.repair}
    assert set(core_variants(default)) <= set(quick)


points = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12)


@given(points)
def test_the_front_holds_just_the_points_that_none_beats(given_points: list[tuple[int, int]]) -> None:
    kept = front(given_points)
    assert any(kept)
    for (cost, loss), on_front in zip(given_points, kept, strict=True):
        beaten = any(c <= cost and k <= loss and (c, k) != (cost, loss) for c, k in given_points)
        assert on_front is not beaten


def test_the_recommendation_reuses_most_within_the_loss_asked_for() -> None:
    def cell(reuse: float, kl: float, threshold: float | None) -> dict[str, float | None]:
        return {"reuse_share": reuse, "kl_mean": kl, "threshold": threshold}

    cells = [cell(0.2, 0.0, None), cell(0.6, 0.01, 0.9), cell(0.6, 0.01, 0.95), cell(0.9, 0.1, 0.7)]
    assert recommend(cells, 0.02) is cells[2]
    assert recommend(cells, 0.0) is cells[0]
    assert recommend(cells[1:], 0.001) is None
