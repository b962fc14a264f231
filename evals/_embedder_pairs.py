"""Pairs of texts to embed: written by hand, and chunks as the segmenter cuts them out of real texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from transformers import PreTrainedTokenizerBase

from evals._pairs import WRITTEN
from evals._stale_items import make_items
from kvboost.protocols import PromptSegmenter

_DOCUMENT_TOKENS = 96
KINDS = ("identical", "paraphrased", "changed", "unrelated")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts.

    Attributes
    ----------
    source
        ``written`` by hand, or ``chunks`` of real texts.
    kind
        ``identical``; ``paraphrased``: other words, same meaning (written only); ``changed``: the same words but for
        one fact; ``unrelated``.
    """

    source: str
    language: str
    kind: str
    left: str
    right: str


def written(language: str) -> Iterator[Pair]:
    """Yield the pairs of the sentences written by hand."""
    for each in WRITTEN[language]:
        yield Pair("written", language, "identical", each.text, each.text)
        yield Pair("written", language, "paraphrased", each.text, each.paraphrase)
        yield Pair("written", language, "changed", each.text, each.changed)
    for one, other in combinations(WRITTEN[language], 2):
        yield Pair("written", language, "unrelated", one.text, other.text)


class Chunker:
    """Makes pairs of chunks, cut with a model's tokenizer and segmenter."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, segmenter: PromptSegmenter) -> None:
        self._tokenizer = tokenizer
        self._segmenter = segmenter

    def tokens(self, text: str) -> int:
        """Return how many of the model's tokens a text has."""
        return len(self._ids(text))

    def chunks(self, text: str) -> list[str]:
        """Return the texts of the chunks."""
        return [chunk.text.strip() for chunk in self._segmenter.segment(self._ids(text)).chunks]

    def pairs(self, language: str, paragraphs: Sequence[str], count: int, rng: random.Random) -> Iterator[Pair]:
        """Yield ``count`` changed pairs, and what as many chunks give of the other kinds; none is a paraphrase."""
        chosen = rng.sample(paragraphs, min(count, len(paragraphs)))
        texts = [self.chunks(paragraph)[0] for paragraph in chosen]
        for text in texts:
            yield Pair("chunks", language, "identical", text, text)
        for item in make_items(language, count, paragraphs, self.tokens, _DOCUMENT_TOKENS, rng):
            old, new = self.chunks(item.old_document), self.chunks(item.new_document)
            parting = next(pair for pair in zip(old, new, strict=False) if pair[0] != pair[1])
            yield Pair("chunks", language, "changed", *parting)
        for one, other in combinations(texts, 2):
            yield Pair("chunks", language, "unrelated", one, other)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids
