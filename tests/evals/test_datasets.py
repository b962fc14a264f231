"""Readers of published data sets, on files of their form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from evals._chats import _recorded
from evals._datasets import question_sets, with_distractors
from evals._documents import Document
from evals._near_duplicates import versions
from evals._prompts import Question, read_prompts
from kvboost.errors import InputError
from tests.tiny_models import tiny_tokenizer


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    (path.parent / "SOURCE.txt").write_text("github:x/y at 123; licence: MIT\n", encoding="utf-8")
    return path


def _squad(context: str, question: str, *answers: str) -> str:
    given = [{"text": text, "answer_start": 0} for text in answers]
    paragraph = {"context": context, "qas": [{"question": question, "answers": given, "id": "1"}]}
    return json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}]})


def test_squad_files_give_question_context_and_distinct_answers(tmp_path: Path) -> None:
    _write(tmp_path / "xquad" / "xquad.zh.json", _squad("文本。", "问题？", "答", "答", "是"))
    (found,) = question_sets(tmp_path)
    assert (found.name, found.source) == ("xquad-zh", "github:x/y at 123; licence: MIT")
    assert found.questions == (Question((Document("T", "文本。"),), "问题？", ("答", "是")),)


def test_musique_answers_are_read_from_python_source(tmp_path: Path) -> None:
    record = {"ctxs": [{"title": "", "text": "a"}, {"title": "B", "text": "b"}], "question": "q", "answers": "['x']"}
    _write(tmp_path / "musique" / "musique_s.json", json.dumps([record]))
    (found,) = question_sets(tmp_path)
    assert found.questions == (Question((Document("", "a"), Document("B", "b")), "q", ("x",)),)


def test_answers_that_are_no_list_are_refused(tmp_path: Path) -> None:
    record = {"ctxs": [], "question": "q", "answers": "__import__('os').getcwd()"}
    _write(tmp_path / "musique" / "musique_s.json", json.dumps([record]))
    with pytest.raises(InputError, match=r"musique_s\.json"):
        question_sets(tmp_path)


def test_nq_oracle_is_gzipped_json_lines(tmp_path: Path) -> None:
    file = _write(tmp_path / "lost-in-the-middle" / "nq-open-oracle.jsonl.gz", "")
    record = {"question": "q", "answers": ["x"], "ctxs": [{"title": "A", "text": "a", "isgold": True}]}
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")
    assert question_sets(tmp_path)[0].questions == (Question((Document("A", "a"),), "q", ("x",)),)


@pytest.mark.parametrize("content", ["{", "[]", '{"data": [{}]}'])
def test_a_malformed_file_is_named(tmp_path: Path, content: str) -> None:
    _write(tmp_path / "cmrc2018" / "cmrc2018_trial.json", content)
    with pytest.raises(InputError, match=r"cmrc2018_trial\.json"):
        question_sets(tmp_path)


def test_data_without_origin_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "xquad" / "xquad.en.json", _squad("c", "q", "a"))
    (tmp_path / "xquad" / "SOURCE.txt").unlink()
    with pytest.raises(InputError, match=r"SOURCE\.txt"):
        question_sets(tmp_path)


def test_a_folder_without_data_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"xquad/xquad\.en\.json"):
        question_sets(tmp_path)


def test_distractors_come_from_other_questions_and_never_twice() -> None:
    shared, other = Document("", "shared"), Document("", "other")
    questions = [Question((shared,), "a"), Question((shared,), "b"), Question((other,), "c")]
    assert with_distractors(questions, 0, 2).documents == (shared, other)
    assert with_distractors(questions, 0, 9).documents == (shared, other)


def test_versions_are_paired_in_order_around_their_difference(tmp_path: Path) -> None:
    lines = [f"line {i} of the page, with some words in it.\n" for i in range(40)]
    for number, changed in ((0, "first"), (1, "second"), (10, "third")):
        text = "".join([*lines[:20], f"the {changed} wording.\n", *lines[20:]])
        _write(tmp_path / f"page.v{number}-0abc.md", text)
    pairs = versions(tiny_tokenizer(), tmp_path, 200)
    assert [("first" in old.text, "third" in new.text) for old, new in pairs] == [(True, False), (False, True)]
    assert all("second" in pair[i].text for pair, i in zip(pairs, (1, 0), strict=True))


def test_recorded_chats_join_what_follows_the_user() -> None:
    turns = _recorded("user: Hi: there\nassistant: None\ntool: Error\nassistant: Sorry.\nuser: Bye\n")
    assert [(turn.user, turn.reply) for turn in turns] == [("Hi: there", "Error\nSorry."), ("Bye", None)]


def test_prompts_of_the_user_may_lack_answers(tmp_path: Path) -> None:
    file = _write(tmp_path / "p.jsonl", '{"contexts": ["a"], "question": "q"}\n\n')
    assert read_prompts(file) == [Question((Document("", "a"),), "q", ())]


@pytest.mark.parametrize(
    ("line", "field"),
    [("{", "JSON"), ("[]", "object"), ('{"contexts": "a", "question": "q"}', "contexts"),
     ('{"contexts": ["a"]}', "question"), ('{"contexts": ["a"], "question": "q", "answer": 3}', "answer")],
)  # fmt: skip
def test_a_bad_prompt_is_named_by_line_and_field(tmp_path: Path, line: str, field: str) -> None:
    file = _write(tmp_path / "p.jsonl", '{"contexts": ["a"], "question": "q", "answer": ["x", "y"]}\n' + line)
    with pytest.raises(InputError, match=rf"line 2.*{field}"):
        read_prompts(file)
