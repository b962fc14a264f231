"""What the quality eval asks: requests served before, whose K/V are cached, and the prompt that may reuse them."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from evals._datasets import Dataset, question_sets, with_distractors
from evals._documents import Document, draw, own_documents
from evals._edits import any_edit
from evals._prompts import Question, prompt, read_prompts
from kvboost.errors import InputError

DONOR_QUESTION = "What is the first document about?"
_MULTIHOP_DOCUMENTS = 6


@dataclass(frozen=True, slots=True)
class Item:
    """One measurement.

    Attributes
    ----------
    donors
        Token ids of the ordinary requests that filled the cache.
    answers
        Reference answers; none if the answer is only compared with full prefill's.
    """

    task: str
    donors: tuple[tuple[int, ...], ...]
    prompt: tuple[int, ...]
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """Items of one kind; ``source`` says where the texts come from."""

    name: str
    source: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many items, and how large."""

    items: int
    documents: int
    document_tokens: int


class TaskMaker:
    """Makes tasks for one tokenizer; the same seed makes the same tasks."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, sizes: Sizes, seed: int) -> None:
        self.tokenizer = tokenizer
        self.sizes = sizes
        self.seed = seed

    def reordered(self, name: str, question: Question, rng: random.Random) -> Item:
        """Documents cached by a request with another order and question; a single one was cached on its own."""
        before = rng.sample(question.documents, len(question.documents))
        now = before
        while now == before and len(before) > 1:
            now = rng.sample(before, len(before))
        return self._item(name, [before], now, question)

    def alone(self, name: str, question: Question, rng: random.Random) -> Item:
        """Documents cached one request each, met together."""
        now = rng.sample(question.documents, len(question.documents))
        return self._item(name, [[each] for each in question.documents], now, question)

    def edited(self, name: str, question: Question, rng: random.Random) -> Item:
        """The same documents in the same order as cached, one of them with a small edit."""
        documents = list(question.documents)
        for at in rng.sample(range(len(documents)), len(documents)):
            made = any_edit(documents[at].text, rng)
            if made is not None:
                now = [*documents[:at], Document(documents[at].title, made.text), *documents[at + 1 :]]
                return self._item(name, [documents], now, question)
        raise InputError("none of the documents offers a place for an edit; give longer ones")

    def own(self) -> list[Task]:
        """Return the tasks over the documents that every machine has."""
        pool = own_documents(self.tokenizer, self.sizes.document_tokens)
        return [
            self._task(name, "pydoc_data.topics of the standard library", make, self._own_questions(name, pool))
            for name, make in (("reordered", self.reordered), ("edited", self.edited), ("alone", self.alone))
        ]

    def published(self, dataset: Dataset) -> Task:
        """Return the task over a data set: multi-hop questions with documents cached apart, others re-ordered."""
        rng = random.Random(f"{self.seed} {dataset.name}")
        chosen = rng.sample(range(len(dataset.questions)), min(self.sizes.items, len(dataset.questions)))
        if dataset.name == "musique":
            nearest = (_nearest(dataset.questions[i], _MULTIHOP_DOCUMENTS) for i in chosen)
            return self._task("multihop-musique", dataset.source, self.alone, nearest)
        widened = (with_distractors(dataset.questions, i, self.sizes.documents) for i in chosen)
        return self._task(f"qa-{dataset.name}", dataset.source, self.reordered, widened)

    def users(self, questions: Sequence[Question]) -> Task:
        """Return the task over the user's own prompts."""
        return self._task("prompts", "--prompts", self.reordered, questions[: self.sizes.items])

    def _task(
        self,
        name: str,
        source: str,
        make: Callable[[str, Question, random.Random], Item],
        questions: Sequence[Question] | Iterator[Question],
    ) -> Task:
        rng = random.Random(f"{self.seed} {name}")
        return Task(name, source, tuple(make(name, question, rng) for question in questions))

    def _own_questions(self, name: str, pool: list[Document]) -> list[Question]:
        rng = random.Random(f"{self.seed} {name} documents")
        questions = []
        for _ in range(self.sizes.items):
            documents = draw(rng, pool, self.sizes.documents)
            asked = rng.choice(documents).title
            questions.append(Question(tuple(documents), f"Explain briefly what the document '{asked}' says."))
        return questions

    def _item(
        self, name: str, donors: Sequence[Sequence[Document]], now: Sequence[Document], question: Question
    ) -> Item:
        cached = tuple(tuple(prompt(self.tokenizer, each, DONOR_QUESTION)) for each in donors)
        return Item(name, cached, tuple(prompt(self.tokenizer, now, question.text)), question.answers)


def make_tasks(tokenizer: PreTrainedTokenizerBase, sizes: Sizes, args: argparse.Namespace) -> list[Task]:
    """Return the tasks that the arguments ask for: the user's prompts, or our own and those of ``--data``."""
    maker = TaskMaker(tokenizer, sizes, args.seed)
    if args.prompts is not None:
        return [maker.users(read_prompts(args.prompts))]
    published = [maker.published(each) for each in question_sets(args.data)] if args.data is not None else []
    return [*maker.own(), *published]


def _nearest(question: Question, count: int) -> Question:
    """Keep the documents with an answer in them, then those that share most words with the question."""
    words = set(question.text.lower().split())

    def closeness(document: Document) -> tuple[bool, int]:
        text = document.text.lower()
        return any(a.lower() in text for a in question.answers), len(words & set(text.split()))

    best = sorted(question.documents, key=closeness, reverse=True)[:count]
    return Question(tuple(best), question.text, question.answers)
