"""Conversations to play through: made from documents here, MT-bench, tau-bench, or the user's prompts."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from evals._datasets import parsed, read_source
from evals._documents import Document, draw, own_documents
from evals._prompts import SYSTEM, Question, read_prompts
from evals._tasks import Sizes
from kvboost.errors import InputError

_QUESTIONS = (
    "What is this text about?",
    "Name the most important rule in it.",
    "What would happen if that rule were broken?",
    "Give a short example.",
    "Which words of the text need an explanation?",
    "Explain the first of them.",
    "Is anything said about errors?",
    "Sum up our conversation in two sentences.",
)
_MT_BENCH = "mt-bench/question.jsonl"
_TAU_BENCH = "tau-bench/MockAirlineDomainEnv-few_shot.jsonl"
_TAU_WIKI = "tau-bench/airline-wiki.md"
_SPEAKER = re.compile(r"^(user|assistant|tool): ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, and the recorded reply; without one, the model's own goes on."""

    user: str
    reply: str | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation under one system message."""

    system: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class ChatSet:
    """Conversations of one origin."""

    name: str
    source: str
    chats: tuple[Chat, ...]


def chat_sets(tokenizer: PreTrainedTokenizerBase, sizes: Sizes, turns: int, args: argparse.Namespace) -> list[ChatSet]:
    """Return the conversations that the arguments ask for, of at most ``turns`` turns."""
    if args.prompts is not None:
        return [ChatSet("prompts", "--prompts", tuple(_from_prompts(read_prompts(args.prompts), turns))[: sizes.items])]
    sets = [_own(tokenizer, sizes, turns, args.seed)]
    if args.data is not None:
        sets += _published(args.data, sizes.items, turns, args.seed)
    return sets


def _own(tokenizer: PreTrainedTokenizerBase, sizes: Sizes, turns: int, seed: int) -> ChatSet:
    rng = random.Random(f"{seed} chats")
    pool = own_documents(tokenizer, sizes.document_tokens)
    chats = []
    for _ in range(sizes.items):
        documents = draw(rng, pool, sizes.documents)
        asked = [_QUESTIONS[i % len(_QUESTIONS)] for i in range(turns)]
        chats.append(Chat(SYSTEM, tuple(Turn(text) for text in (_opening(documents, asked[0]), *asked[1:]))))
    return ChatSet("documents", "pydoc_data.topics of the standard library", tuple(chats))


def _opening(documents: Sequence[Document], question: str) -> str:
    return "\n\n".join([*(each.text for each in documents), question])


def _from_prompts(questions: Sequence[Question], turns: int) -> list[Chat]:
    """Take neighbouring lines with the same contexts as one conversation."""
    chats: list[list[Question]] = []
    for question in questions:
        if chats and chats[-1][0].documents == question.documents and len(chats[-1]) < turns:
            chats[-1].append(question)
        else:
            chats.append([question])
    return [
        Chat(SYSTEM, (Turn(_opening(own[0].documents, own[0].text)), *(Turn(each.text) for each in own[1:])))
        for own in chats
    ]


def _published(data: Path, items: int, turns: int, seed: int) -> list[ChatSet]:
    sets = []
    for name, file, read in (("mt-bench", _MT_BENCH, _mt_bench), ("tau-bench", _TAU_BENCH, _tau_bench)):
        if (data / file).is_file():
            chats = parsed(data / file, read)
            chosen = random.Random(f"{seed} {name}").sample(chats, min(items, len(chats)))
            cut = tuple(Chat(chat.system, chat.turns[:turns]) for chat in chosen)
            sets.append(ChatSet(name, read_source(data / file), cut))
    if not sets:
        raise InputError(f"--data {data} holds neither {_MT_BENCH} nor {_TAU_BENCH}; give the folder that they are in")
    return sets


def _mt_bench(file: Path) -> list[Chat]:
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [Chat("You are a helpful assistant.", tuple(Turn(text) for text in record["turns"])) for record in records]


def _tau_bench(file: Path) -> list[Chat]:
    rules = (file.parents[1] / _TAU_WIKI).read_text(encoding="utf-8")
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [Chat(rules, tuple(_recorded(record["messages_display"]))) for record in records]


def _recorded(text: str) -> list[Turn]:
    """Read ``user: ... assistant: ... tool: ...``: all that follows the user's words is the reply to them."""
    parts = _SPEAKER.split(text)[1:]
    turns: list[Turn] = []
    for speaker, said in zip(parts[::2], parts[1::2], strict=True):
        if speaker == "user":
            turns.append(Turn(said.strip()))
        elif turns and said.strip() != "None":
            before = f"{turns[-1].reply}\n" if turns[-1].reply else ""
            turns[-1] = Turn(turns[-1].user, f"{before}{said.strip()}")
    return turns
