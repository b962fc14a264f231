"""Prompts whose documents are cached in an earlier wording."""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from evals._datasets import read_source
from evals._documents import Document, own_documents, shortened
from evals._edits import any_edit
from evals._prompts import prompt, read_prompts
from evals._tasks import DONOR_QUESTION, Sizes
from kvboost.errors import InputError

_EDITS_PER_DOCUMENT = 2
_LINES_BEFORE = 8
_VERSION = re.compile(r"(.+)\.v(\d+)-[0-9a-f]+\.md")


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """The ids of a request with the old wording, and of one with the new wording."""

    old: tuple[int, ...]
    new: tuple[int, ...]


def near_duplicates(
    tokenizer: PreTrainedTokenizerBase, sizes: Sizes, args: argparse.Namespace
) -> tuple[list[NearDuplicate], str]:
    """Return the prompts that the arguments ask for, and where their texts come from."""
    rng = random.Random(f"{args.seed} near duplicates")
    if args.prompts is not None:
        asked = read_prompts(args.prompts)[: sizes.items]
        pairs = [([(d, _edited(d, rng)) for d in each.documents], each.text) for each in asked]
        return [_item(tokenizer, documents, question) for documents, question in pairs], "--prompts"
    if args.data is not None:
        pool = versions(tokenizer, args.data / "neardup-httpx", sizes.document_tokens)
        source = read_source(args.data / "neardup-httpx" / "README.md")
    else:
        texts = own_documents(tokenizer, sizes.document_tokens)
        pool = [(each, _edited(each, rng)) for each in texts]
        source = "pydoc_data.topics of the standard library, edited here"
    items = []
    for _ in range(sizes.items):
        chosen = rng.sample(pool, min(sizes.documents, len(pool)))
        asked_for = rng.choice(chosen)[1].title
        items.append(_item(tokenizer, chosen, f"Explain briefly what the document '{asked_for}' says."))
    return items, source


def versions(tokenizer: PreTrainedTokenizerBase, folder: Path, document_tokens: int) -> list[tuple[Document, Document]]:
    """Return neighbouring versions of each page, cut to the surroundings of their first difference.

    Raises
    ------
    InputError
        If the folder holds none.
    """
    pages: dict[str, dict[int, str]] = {}
    for file in sorted(folder.glob("*.md")):
        named = _VERSION.fullmatch(file.name)
        if named is not None:
            pages.setdefault(named[1], {})[int(named[2])] = file.read_text(encoding="utf-8")
    pairs = []
    for name, texts in pages.items():
        for old, new in pairwise(texts[number] for number in sorted(texts)):
            cut = [shortened(tokenizer, text, document_tokens) for text in _from_difference(old, new)]
            if cut[0] is not None and cut[1] is not None and cut[0] != cut[1]:
                pairs.append((Document(name, cut[0]), Document(name, cut[1])))
    if not pairs:
        raise InputError(f"{folder} holds no pages named NAME.vN-COMMIT.md in two versions; see its SOURCE.txt")
    return pairs


def _from_difference(old: str, new: str) -> tuple[str, str]:
    """Return both texts from a few lines before the first line that differs."""
    left, right = old.splitlines(keepends=True), new.splitlines(keepends=True)
    first = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    start = max(first - _LINES_BEFORE, 0)
    return "".join(left[start:]), "".join(right[start:])


def _edited(document: Document, rng: random.Random) -> Document:
    text = document.text
    for _ in range(_EDITS_PER_DOCUMENT):
        made = any_edit(text, rng)
        text = text if made is None else made.text
    return Document(document.title, text)


def _item(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[Document, Document]], question: str
) -> NearDuplicate:
    old = prompt(tokenizer, [old for old, _ in pairs], DONOR_QUESTION)
    return NearDuplicate(tuple(old), tuple(prompt(tokenizer, [new for _, new in pairs], question)))
