"""What the backends are asked: shared system prompt, moved documents, an edit, a chat, threads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from evals._corpus import Corpus
from evals._edits import edit
from kvboost.errors import InputError

_QUESTIONS = (
    "What is this text about?",
    "Which rule in it matters most?",
    "Name one word in it that needs an explanation.",
    "Is anything said about errors?",
    "Give a short example of what it describes.",
)
_REPLIES = (
    "It describes a part of the language, says when it applies, and names the cases that are treated otherwise.",
    "The rule that decides which of several meanings is taken is the one on which all the others rest.",
    "The word that it uses for a group of values is not explained there, though most of the text depends on it.",
    "It says that a wrong use is reported as an error, and that the message names the place where it was found.",
)
_SYSTEM = "Answer in one short sentence, from the text below.\n\n"


@dataclass(frozen=True, slots=True)
class Step:
    """Prompts asked at the same time.

    Attributes
    ----------
    cell
        Name of the cell that this is measured in; empty for a request that only fills the caches.
    """

    cell: str
    prompts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order, to an empty cache."""

    name: str
    steps: tuple[Step, ...]


def workloads(tokenizer: PreTrainedTokenizerBase, tokens: int, seed: int) -> list[Workload]:
    """Return the workloads, over contexts of about ``tokens`` tokens; the chat begins with a third of that."""
    maker = _Maker(tokenizer, Corpus(tokenizer, seed), random.Random(f"{seed} peers"))
    return [
        maker.system_prompt(tokens),
        maker.reordered(tokens),
        maker.edited(tokens),
        maker.chat(tokens // 3),
        maker.threads(tokens // 3),
    ]


class _Maker:
    def __init__(self, tokenizer: PreTrainedTokenizerBase, corpus: Corpus, rng: random.Random) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._rng = rng

    def system_prompt(self, tokens: int) -> Workload:
        """One system prompt, one question after another."""
        system = _SYSTEM + self._corpus.take(tokens)
        asked = [self._chat(system, [question]) for question in _QUESTIONS[:3]]
        return Workload("system prompt", (Step("cold", (asked[0],)), *(Step("warm", (each,)) for each in asked[1:])))

    def reordered(self, tokens: int) -> Workload:
        """Four documents, then the same in another order with another question."""
        a, b, c, d = self._documents(tokens)
        before, now = self._over([a, b, c, d], _QUESTIONS[0]), self._over([c, a, d, b], _QUESTIONS[1])
        return Workload("documents", (Step("", (before,)), Step("reordered", (now,))))

    def edited(self, tokens: int) -> Workload:
        """Four documents, then the same with one number, or else one word, changed in one of them."""
        documents = self._documents(tokens)
        before = self._over(documents, _QUESTIONS[0])
        for kind in ("number", "word", "inserted"):
            for at in (1, 2, 0, 3):
                made = edit(documents[at], kind, self._rng)
                if made is not None:
                    now = self._over([*documents[:at], made.text, *documents[at + 1 :]], _QUESTIONS[0])
                    return Workload("edit", (Step("", (before,)), Step("edited", (now,))))
        raise InputError("the documents offer no place for an edit; take another --seed or more --tokens")

    def chat(self, tokens: int) -> Workload:
        """Five turns; the replies are given, so that all backends see the same prompts."""
        system = _SYSTEM + self._corpus.take(tokens)
        steps = []
        for turn in range(1, len(_QUESTIONS) + 1):
            prompt = self._chat(system, _QUESTIONS[:turn])
            steps.append(Step("turn 1" if turn == 1 else "turns 2-5", (prompt,)))
        return Workload("chat", tuple(steps))

    def threads(self, tokens: int) -> Workload:
        """Four questions at the same time, over a system prompt that was seen before."""
        system = _SYSTEM + self._corpus.take(tokens)
        first, *others = (self._chat(system, [question]) for question in _QUESTIONS)
        return Workload("threads", (Step("", (first,)), Step("4 at once", tuple(others))))

    def _documents(self, tokens: int) -> list[str]:
        return [self._corpus.take(tokens // 4) for _ in range(4)]

    def _over(self, documents: Sequence[str], question: str) -> str:
        body = "\n\n".join(f"Document:\n{text}" for text in documents)
        return self._chat("Answer in one short sentence, from the documents.", [f"{body}\n\nQuestion: {question}"])

    def _chat(self, system: str, questions: Sequence[str]) -> str:
        messages = [{"role": "system", "content": system}]
        for question, reply in zip(questions, _REPLIES, strict=False):
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        messages = messages[: 2 * len(questions)]
        if len(questions) > len(_REPLIES):
            messages.append({"role": "user", "content": questions[-1]})
        if self._tokenizer.chat_template is None:
            return "\n\n".join(f"{m['role']}: {m['content']}" for m in messages) + "\n\nassistant:"
        made: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return made
