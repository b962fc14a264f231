"""The four requests: what is asked about which documents, in which order."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvboost.client.runtime_types import ChatMessage

from .documents import NEW_FEE, OLD_FEE, documents

SYSTEM = "Answer the question from the documents below. Keep the answer to one short sentence."
INTRODUCTION = "These are the documents that the question below them is about."
QUESTIONS = {
    "cold": "Question: On which day of the week does the reading course meet?",
    "reordered": "Question: What does the for statement do?",
    "edited": "Question: What is the fee for the whole course, in euros?",
    "chat": "Thank you. And what does the fee cover, besides coffee and tea?",
}
TITLES = {
    "cold": "a first request: the cache is empty",
    "reordered": "the same documents in another order, another question",
    "edited": f"one number of one document edited: {OLD_FEE} became {NEW_FEE}",
    "chat": "the second turn of the first request's chat",
}


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """One request.

    Attributes
    ----------
    question
        The last thing said; everything before it is context.
    expected, old
        The number that a right answer carries, and the one that a stale answer would; or None.
    """

    name: str
    messages: tuple[ChatMessage, ...]
    question: str
    expected: str | None = None
    old: str | None = None

    @property
    def title(self) -> str:
        """What this request shows, in a few words."""
        return TITLES[self.name]

    def context_tokens(self, token_texts: tuple[str, ...]) -> int:
        """Return how many of the prompt's tokens end before the question begins.

        Parameters
        ----------
        token_texts
            The text of each prompt token; joined they are the prompt.
        """
        start = "".join(token_texts).rindex(self.question)
        at = count = 0
        for text in token_texts:
            at += len(text)
            if at > start:
                break
            count += 1
        return count


def cold() -> DemoRequest:
    """Return the first request, over an empty cache."""
    return _over(documents(), "cold")


def reordered(seed: int) -> DemoRequest:
    """Return the request over the same documents, every one of them in another place."""
    originals = documents()
    shuffled = list(originals)
    rng = random.Random(seed)
    while any(a == b for a, b in zip(originals, shuffled, strict=True)):
        rng.shuffle(shuffled)
    return _over(shuffled, "reordered")


def edited() -> DemoRequest:
    """Return the request over the first one's documents with one number changed."""
    request = _over(documents(NEW_FEE), "edited")
    return DemoRequest(request.name, request.messages, request.question, expected=NEW_FEE, old=OLD_FEE)


def chat(first: DemoRequest, answer: str) -> DemoRequest:
    """Return the turn that follows ``first``, which was answered with ``answer``."""
    question = QUESTIONS["chat"]
    turns = (*first.messages, ChatMessage("assistant", answer), ChatMessage("user", question))
    return DemoRequest("chat", turns, question)


def _over(texts: list[str], name: str) -> DemoRequest:
    question = QUESTIONS[name]
    body = "\n\n".join([INTRODUCTION, *texts, question])
    return DemoRequest(name, (ChatMessage("system", SYSTEM), ChatMessage("user", body)), question)
