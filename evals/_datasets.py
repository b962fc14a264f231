"""Readers for published data sets, as they lie in ``--data DIR``, each folder with its SOURCE.txt."""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from evals._documents import Document
from evals._prompts import Question
from kvboost.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Questions of one data set, and what its SOURCE.txt says of origin and licence."""

    name: str
    source: str
    questions: tuple[Question, ...]


def question_sets(data: Path) -> list[Dataset]:
    """Return every question set that is there.

    Raises
    ------
    InputError
        If none is, or a file is not what it should be.
    """
    found = [
        Dataset(name, read_source(data / file), tuple(parsed(data / file, read)))
        for name, (file, read) in _QUESTION_SETS.items()
        if (data / file).is_file()
    ]
    if not found:
        files = ", ".join(file for file, _ in _QUESTION_SETS.values())
        raise InputError(f"--data {data} holds none of {files}; give the folder that they are in")
    return found


def read_source(file: Path) -> str:
    """Return the SOURCE.txt beside ``file``: where it comes from and under which licence.

    Raises
    ------
    InputError
        If there is none: results must name their data.
    """
    try:
        return (file.parent / "SOURCE.txt").read_text(encoding="utf-8").strip()
    except OSError:
        raise InputError(f"{file.parent} has no SOURCE.txt; write one that names origin and licence") from None


def parsed(file: Path, read: Callable[[Path], list[T]]) -> list[T]:
    """Return what ``read`` makes of ``file``; a malformed file is an error that names it.

    Raises
    ------
    InputError
    """
    try:
        return read(file)
    except (OSError, ValueError, KeyError, TypeError, IndexError, SyntaxError) as error:
        raise InputError(f"{file} has not the form it is published in ({type(error).__name__}: {error})") from error


def with_distractors(questions: Sequence[Question], chosen: int, documents: int) -> Question:
    """Return question ``chosen`` with documents of the following questions added, up to ``documents`` in all."""
    question = questions[chosen]
    together = {each.text: each for each in question.documents}
    for step in range(1, len(questions)):
        if len(together) >= documents:
            break
        for each in questions[(chosen + step) % len(questions)].documents:
            if len(together) < documents:
                together.setdefault(each.text, each)
    return Question(tuple(together.values()), question.text, question.answers)


def _squad(file: Path) -> list[Question]:
    records: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return [
        Question((Document(article.get("title", ""), paragraph["context"]),), qa["question"], _texts(qa["answers"]))
        for article in records["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]


def _texts(answers: Sequence[dict[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answer["text"] for answer in answers))


def _nq_oracle(file: Path) -> list[Question]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [Question(_passages(record), record["question"], tuple(record["answers"])) for record in records]


def _musique(file: Path) -> list[Question]:
    # The file writes the list of answers as Python source inside a JSON string.
    records = json.loads(file.read_text(encoding="utf-8"))
    return [Question(_passages(r), r["question"], tuple(_as_list(r["answers"]))) for r in records]


def _as_list(answers: object) -> list[str]:
    value = ast.literal_eval(answers) if isinstance(answers, str) else answers
    if not isinstance(value, list):
        raise TypeError(f"answers {answers!r} are no list")
    return value


def _passages(record: dict[str, Any]) -> tuple[Document, ...]:
    return tuple(Document(passage["title"], passage["text"]) for passage in record["ctxs"])


_QUESTION_SETS: dict[str, tuple[str, Callable[[Path], list[Question]]]] = {
    "xquad-en": ("xquad/xquad.en.json", _squad),
    "xquad-zh": ("xquad/xquad.zh.json", _squad),
    "nq": ("lost-in-the-middle/nq-open-oracle.jsonl.gz", _nq_oracle),
    "cmrc2018": ("cmrc2018/cmrc2018_trial.json", _squad),
    "musique": ("musique/musique_s.json", _musique),
}
