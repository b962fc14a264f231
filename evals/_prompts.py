"""From documents and questions to token ids, and the user's own prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from evals._documents import Document
from kvboost.errors import InputError

SYSTEM = "You answer questions from the given documents."


@dataclass(frozen=True, slots=True)
class Question:
    """A question over documents, and the answers that count as right; without any, none is scored."""

    documents: tuple[Document, ...]
    text: str
    answers: tuple[str, ...] = ()


def prompt(tokenizer: PreTrainedTokenizerBase, documents: Sequence[Document], question: str) -> list[int]:
    """Return the ids of one request: system line, documents, question."""
    blocks = [f"Document: {each.title}\n{each.text}" if each.title else each.text for each in documents]
    return chat(
        tokenizer,
        [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "\n\n".join([*blocks, f"Question: {question}"])},
        ],
    )


def chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    """Return the ids of a conversation, up to where the assistant speaks."""
    if tokenizer.chat_template is None:
        lines = [f"{m['role']}: {m['content']}" for m in messages]
        ids: list[int] = tokenizer("\n\n".join([*lines, "assistant:"]))["input_ids"]
        return ids
    made = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
    return list(made["input_ids"])


def read_prompts(path: Path) -> list[Question]:
    """Read the user's prompts, one JSON object a line.

    Raises
    ------
    InputError
        Naming the line and what is wrong with it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompts {path} cannot be read: {error}") from error
    questions = [_question(line, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not questions:
        raise InputError(f"--prompts {path} holds no prompts; write one JSON object a line")
    return questions


def _question(line: str, where: str) -> Question:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise InputError(f"{where} must be a JSON object with contexts and question")
    contexts, question, answer = record.get("contexts"), record.get("question"), record.get("answer")
    if not isinstance(contexts, list) or not contexts or not all(isinstance(c, str) and c for c in contexts):
        raise InputError(f"{where}: contexts must be a list of texts, at least one")
    if not isinstance(question, str) or not question:
        raise InputError(f"{where}: question must be a text")
    answers = [answer] if isinstance(answer, str) else [] if answer is None else answer
    if not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
        raise InputError(f"{where}: answer must be a text or a list of texts, or be left out")
    return Question(tuple(Document("", c) for c in contexts), question, tuple(answers))
