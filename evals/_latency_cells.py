"""The prompts of the latency eval: what is cached, and what is asked then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from evals._corpus import Corpus
from evals._documents import Document
from evals._edits import edit
from evals._prompts import prompt
from kvboost.errors import InputError
from kvboost.policy import ReusePolicy

TIERS = ("prefix", "shifted", "edited", "cold")
DOCUMENT_TOKENS = 1024
FEWEST_DOCUMENTS = 4
_QUESTIONS = ("What is the first document about?", "Which of the documents speaks of names, and what does it say?")
_TEMPLATE_TOKENS = 72
_PER_DOCUMENT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt under one policy.

    Attributes
    ----------
    new_share
        Asked share of new or recomputed tokens.
    common
        Leading tokens that equal those of a cached prompt: what transformers' own prefix reuse could use.
    """

    tier: str
    new_share: float
    prompt: tuple[int, ...]
    policy: ReusePolicy
    common: int


@dataclass(frozen=True, slots=True)
class Group:
    """All cases of one prompt length; ``donors`` fill the cache first.

    Attributes
    ----------
    base
        The prompt, of the same length as the cases', that plain transformers is timed on.
    """

    tokens: int
    donors: tuple[tuple[int, ...], ...]
    base: tuple[int, ...]
    cases: tuple[Case, ...]


def make_group(
    tokenizer: PreTrainedTokenizerBase,
    tokens: int,
    shares: Sequence[float],
    tiers: Sequence[str],
    policy: ReusePolicy,
    seed: int,
    rounds: int = 1,
) -> Group:
    """Return prompts of about ``tokens`` tokens, all within a few tokens of the same length.

    ``rounds`` as in :class:`~evals._corpus.Corpus`.
    """
    rng = random.Random(f"{seed} {tokens} latency")
    corpus = Corpus(tokenizer, seed, rounds)
    documents = _documents(corpus, tokens)
    cached = tuple(prompt(tokenizer, documents, _QUESTIONS[0]))
    moved = [*documents[1::2], *documents[::2]]  # none keeps its place, none its neighbour
    shifted = tuple(prompt(tokenizer, moved, _QUESTIONS[1]))
    length = len(shifted)
    base = tuple(_ids(tokenizer, corpus.take(length + 8))[:length])
    cases: list[Case] = []
    for share in shares:
        spending = replace(policy, repair="query", recompute_ratio=share)
        if "prefix" in tiers:
            new = max(1, round(share * length))
            tail = _ids(tokenizer, corpus.take(new + 8))[:new]
            cases.append(_case("prefix", share, (*base[: length - new], *tail), policy, base))
        if "shifted" in tiers:
            cases.append(_case("shifted", share, shifted, spending, cached))
        if "edited" in tiers:
            changed = tuple(prompt(tokenizer, _edited(documents, rng), _QUESTIONS[0]))
            cases.append(_case("edited", share, changed, spending, cached))
    if "cold" in tiers:
        # No template: its system line is cached by now.
        cases.append(Case("cold", 1.0, tuple(_ids(tokenizer, corpus.take(length + 8))[:length]), policy, 0))
    return Group(tokens, (base, cached), base, tuple(cases))


def _case(tier: str, share: float, ids: tuple[int, ...], policy: ReusePolicy, donor: Sequence[int]) -> Case:
    common = next((i for i, (a, b) in enumerate(zip(ids, donor, strict=False)) if a != b), min(len(ids), len(donor)))
    return Case(tier, share, ids, policy, min(common, len(ids) - 1))


def _documents(corpus: Corpus, tokens: int) -> list[Document]:
    count = max(FEWEST_DOCUMENTS, tokens // DOCUMENT_TOKENS)
    each = (tokens - _TEMPLATE_TOKENS) // count - _PER_DOCUMENT_TOKENS
    if each < 1:
        raise InputError(f"--tokens {tokens} is too short for {count} documents; ask for 128 at least")
    return [Document(f"Part {n}", corpus.take(each)) for n in range(1, count + 1)]


def _edited(documents: Sequence[Document], rng: random.Random) -> list[Document]:
    """Change one number, or where there is none one word, in the document nearest to the middle that offers it."""
    middle = len(documents) // 2
    for kind in ("number", "word", "inserted"):
        for at in sorted(range(len(documents)), key=lambda i: abs(i - middle)):
            made = edit(documents[at].text, kind, rng)
            if made is not None:
                return [*documents[:at], Document(documents[at].title, made.text), *documents[at + 1 :]]
    raise InputError("none of the documents offers a place for an edit; ask for more --tokens")


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return ids
