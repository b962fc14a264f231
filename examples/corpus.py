"""What the examples ask about: sections of the Python reference that every Python has, and a plain retriever."""

from __future__ import annotations

import re
from pydoc_data.topics import topics

_SECTIONS = ("assert", "break", "continue", "del", "global", "lists", "pass", "power", "return", "truth")
_MAX_CHARACTERS = 900

DOCUMENTS = {name: topics[name].strip()[:_MAX_CHARACTERS] for name in _SECTIONS}
QUESTIONS = (
    "What does the continue statement do in a loop, and what does break do?",
    "How do break and continue differ from return?",
    "Which of break, continue and return may stand in a finally clause?",
)


def best(question: str, count: int = 3) -> list[str]:
    """Return the names of the documents that share most words with the question, best first."""
    asked = set(re.findall(r"\w{4,}", question.lower()))

    def shared(name: str) -> int:
        return sum(word in asked for word in re.findall(r"\w+", DOCUMENTS[name].lower()))

    return sorted(DOCUMENTS, key=shared, reverse=True)[:count]
