"""Retrieval traffic made here: few documents are asked for often, many seldom, and in ever another order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from evals._documents import Document
from evals._prompts import SYSTEM
from kvboost.documents import marked

_HEAD = "These documents were found, best first or in an order that serves the cache:\n\n"
_QUESTIONS = (
    "What does the document on {title} say first?",
    "Which rule about {title} is given?",
    "Say in one sentence what {title} is about.",
    "What must be kept in mind about {title}?",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: documents in the order of their relevance, and a question."""

    documents: tuple[Document, ...]
    question: str

    @property
    def texts(self) -> list[str]:
        """What the documents say, titles included."""
        return [f"{each.title}\n\n{each.text}".strip() for each in self.documents]


def traffic(pool: Sequence[Document], requests: int, documents: int, exponent: float, seed: int) -> list[Asked]:
    """Return requests whose documents are drawn, without repeats within one, by the law of Zipf.

    Parameters
    ----------
    pool
        Documents; which of them are popular is drawn.
    exponent
        The document of rank ``r`` is drawn with a weight of ``1 / r ** exponent``.
    """
    rng = random.Random(f"{seed} retrieval")
    ranked = rng.sample(list(pool), len(pool))
    weights = {each.title: 1 / rank**exponent for rank, each in enumerate(ranked, 1)}
    made = []
    for i in range(requests):
        left = list(ranked)
        found = []
        for _ in range(min(documents, len(left))):
            (one,) = rng.choices(left, [weights[each.title] for each in left])
            left.remove(one)
            found.append(one)
        made.append(Asked(tuple(found), _QUESTIONS[i % len(_QUESTIONS)].format(title=found[0].title)))
    return made


def repeated_share(requests: Sequence[Asked]) -> float:
    """Return the share of documents that an earlier request held."""
    seen: set[str] = set()
    again = total = 0
    for asked in requests:
        texts = set(asked.texts)
        again += len(texts & seen)
        total += len(texts)
        seen |= texts
    return again / total


def prompt_text(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], question: str) -> str:
    """Return a whole prompt, special tokens of the chat template included."""
    said = f"{_HEAD}{marked(texts)}{question}"
    if tokenizer.chat_template is None:
        return f"{SYSTEM}\n\n{said}\n\n"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": said}]
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
