"""How a prompt says that a text in it is a document of its own, such as one that a retriever found.

Blank lines alone do not: a short text before a document joins its first chunk, and a short last paragraph joins the
heading of the document after it, so the chunks at a document's edges would depend on its neighbours. The segmenter
never packs text over a marker, and a line of :data:`SEPARATOR` is one. Between two of them a document is cut, and
tokenised as part of its prompt, in the same way wherever it stands, as long as the tokenizer makes no tokens that reach
over a blank line into text (byte-level BPE does not).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvboost.errors import InputError

SEPARATOR = "<|document|>"
"""Stands before, between and after documents, on a line of its own."""

_BREAK = "\n\n"

T = TypeVar("T")


def marked(documents: Iterable[str]) -> str:
    """Return the documents as one text for a prompt, each a chunk or several of its own.

    What follows in the prompt, such as the question, can be appended as it is. To cache one document before the first
    question, warm ``marked([document])``.

    Parameters
    ----------
    documents
        Texts; white space around them is left out.

    Raises
    ------
    InputError
        If a document is empty, or if one text is given instead of a list.
    """
    if isinstance(documents, str):
        raise InputError("documents must be a list of texts, not one text")
    texts = [text.strip() for text in documents]
    for i, text in enumerate(texts):
        if not text:
            raise InputError(f"documents[{i}] is empty; leave it out")
    return _BREAK.join([SEPARATOR, *(f"{text}{_BREAK}{SEPARATOR}" for text in texts), ""])


@dataclass(frozen=True, slots=True)
class DocumentOrder:
    """An order of documents, for which more of the prompt is cached without loss.

    Attributes
    ----------
    indices
        The documents' numbers in the order given, as they should stand.
    prefix_tokens
        Tokens from the prompt's beginning that are cached after the same history, in this order.
    given_prefix_tokens
        The same in the order given.
    """

    indices: tuple[int, ...]
    prefix_tokens: int
    given_prefix_tokens: int

    def apply(self, items: Sequence[T]) -> list[T]:
        """Return what belongs to the documents, one item each, in this order."""
        if len(items) != len(self.indices):
            raise InputError(f"items holds {len(items)}, the order is of {len(self.indices)} documents")
        return [items[i] for i in self.indices]
