"""Real documents that every machine has: the reference texts in the standard library's ``pydoc_data.topics``."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pydoc_data.topics import topics

from transformers import PreTrainedTokenizerBase

# A title of underlined words, or a reference to another section, reads badly outside its manual.
UNDERLINE = re.compile(r"^[*=~^-]{4,}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Document:
    """A titled text."""

    title: str
    text: str


def own_documents(tokenizer: PreTrainedTokenizerBase, tokens: int) -> list[Document]:
    """Return all documents that have about ``tokens`` tokens after cutting at the end of a paragraph, by title."""
    made = []
    for name in sorted(topics):
        text = UNDERLINE.sub("", topics[name]).strip()
        cut = shortened(tokenizer, text, tokens)
        if cut is not None:
            made.append(Document(name, cut))
    return made


def shortened(tokenizer: PreTrainedTokenizerBase, text: str, tokens: int) -> str | None:
    """Return the start of ``text``, about ``tokens`` long; None if the text is too short.

    It ends, in this order of liking, with a paragraph, a line or a sentence, between 0.6 and 1.1 times ``tokens``.
    """
    # Longer texts than the model reads are expected here, so no warning of them.
    made = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ends = [end for _, end in made["offset_mapping"]]
    least, most = int(0.6 * tokens), int(1.1 * tokens)
    if len(ends) <= least:
        return None
    if len(ends) <= most:
        return text
    for mark in ("\n\n", "\n", ". ", "。"):
        at = text.rfind(mark, ends[least], ends[most])
        if at != -1:
            return text[: at + 1].strip()
    return text[: ends[tokens]]


def draw(rng: random.Random, documents: list[Document], count: int) -> list[Document]:
    """Return ``count`` of the documents in a random order; fewer if there are not so many."""
    return rng.sample(documents, min(count, len(documents)))
