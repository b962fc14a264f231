"""The segmenter: token ids of a prompt in, chunks and sentences out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import Any, Literal

import numpy as np

from kvboost.errors import EmptyPromptError, InputError
from kvboost.protocols import Embedder
from kvboost.segment.blocks import Block, Kind, find_blocks
from kvboost.segment.language import FullStops
from kvboost.segment.offsets import TokenText, TokenTexts
from kvboost.segment.pack import Cutter, Paragraph, Sizes, pack
from kvboost.segment.semantic import SentenceVectors, dips
from kvboost.segment.sentences import unit_ends
from kvboost.types import Chunk, Segmentation, Span

Boundaries = Literal["sentence", "embedding"]

_MEMO_BLOCKS = 1024
_MEMO_MAX_CHARS = 8192


class Segmenter:
    """Cuts prompts at sentence and paragraph boundaries into chunks of bounded length.

    Safe to use from several threads. Implements :class:`~kvboost.protocols.PromptSegmenter`.

    Parameters
    ----------
    tokenizer
        The model's fast Hugging Face tokenizer. Tokens added to it later are not seen.
    min_tokens, max_tokens
        Bounds of a chunk. Shorter chunks are left where a paragraph or the prompt ends, or where a longer one
        would cut a URL, a line of code or a table row.
    boundaries
        ``"sentence"`` closes a chunk at the first sentence end at or above ``min_tokens``; ``"embedding"`` fills
        it up to ``max_tokens`` unless neighbouring sentences change topic (:mod:`kvboost.segment.semantic`).
    language
        Of the Punkt parameters, e.g. ``"english"``. Other languages in the prompt are cut too, with fewer
        abbreviations known.
    embedder
        Embeds sentences for ``boundaries="embedding"``; not used otherwise.

    Raises
    ------
    InputError
        If an argument is out of range or unknown.
    TokenizerError
        If the tokenizer gives no character offsets.
    """

    def __init__(
        self,
        tokenizer: Any,
        min_tokens: int = 16,
        max_tokens: int = 64,
        boundaries: Boundaries = "sentence",
        language: str = "english",
        embedder: Embedder | None = None,
    ) -> None:
        if boundaries not in ("sentence", "embedding"):
            raise InputError(f"boundaries {boundaries!r} must be 'sentence' or 'embedding'")
        if boundaries == "embedding" and embedder is None:
            raise InputError("boundaries 'embedding' need an embedder; pass one, or use boundaries 'sentence'")
        self._sizes = Sizes(min_tokens, max_tokens)
        self._texts = TokenTexts(tokenizer)
        self._stops = FullStops(language)
        self._vectors = SentenceVectors(embedder) if embedder and boundaries == "embedding" else None
        self._remembered_units = lru_cache(maxsize=_MEMO_BLOCKS)(self._find_units)

    def segment(self, token_ids: Sequence[int]) -> Segmentation:
        """Return chunks and whole sentences; each list covers ``[0, len(token_ids))`` exactly once.

        A sentence is a unit of its paragraph: in lists at most an item, in tables a row, in code a line.

        Parameters
        ----------
        token_ids
            The prompt without padding.

        Raises
        ------
        PromptError
            If the prompt is empty (EmptyPromptError) or holds something else than token ids.
        """
        if len(token_ids) == 0:
            raise EmptyPromptError("the prompt has no tokens; pass at least one token id")
        tokens = self._texts(token_ids)
        paragraphs = self._paragraphs(tokens)
        ends = pack(paragraphs, self._sizes, Cutter(tokens, self._sizes))
        text, starts = tokens.text, tokens.starts
        chunks = tuple(Chunk(Span(a, b), text[starts[a] : starts[b]]) for a, b in pairwise([0, *ends]))
        units = chain.from_iterable(paragraph.unit_ends for paragraph in paragraphs)
        return Segmentation(chunks, tuple(Span(a, b) for a, b in pairwise([0, *units])))

    def _paragraphs(self, tokens: TokenText) -> list[Paragraph]:
        """Return the paragraphs of the prompt in tokens; those without a token of their own are left out."""
        blocks = find_blocks(tokens.text, tokens.special) or [Block(0, 0, Kind.PROSE)]
        offsets = [[block.start + end for end in self._units(tokens.text, block)] for block in blocks]
        # A token that straddles a boundary goes to what is before it.
        flat = np.searchsorted(np.asarray(tokens.starts), np.fromiter(chain.from_iterable(offsets), np.int64))
        flat[-1] = len(tokens.starts) - 1  # tokens without text may stand at the very end
        ends = iter(flat.tolist())
        paragraphs = []
        at = 0
        for block, own in zip(blocks, offsets, strict=True):
            units = sorted({end for end in islice(ends, len(own)) if end > at})
            if units:
                paragraphs.append(Paragraph(at, tuple(units), block.kind.by_line, marker=block.kind is Kind.MARKER))
                at = units[-1]
        return self._with_breaks(tokens, paragraphs, self._vectors) if self._vectors else paragraphs

    def _units(self, text: str, block: Block) -> list[int]:
        own = text[block.start : block.end]
        if len(own) > _MEMO_MAX_CHARS:
            return self._find_units(own, block.kind)
        return self._remembered_units(own, block.kind)

    def _find_units(self, text: str, kind: Kind) -> list[int]:
        return unit_ends(text, kind, self._stops) or [0]

    def _with_breaks(self, tokens: TokenText, paragraphs: list[Paragraph], vectors: SentenceVectors) -> list[Paragraph]:
        """Return ``paragraphs``, the longer ones of several sentences with the ends at which the topic changes."""
        text, starts = tokens.text, tokens.starts
        chosen = [p for p in paragraphs if len(p.unit_ends) > 1 and not p.by_line and len(p) > self._sizes.min_tokens]
        sentences = [
            [text[starts[a] : starts[b]].strip() for a, b in pairwise([p.start, *p.unit_ends])] for p in chosen
        ]
        rows = iter(vectors(list(chain.from_iterable(sentences))))
        breaks: dict[int, frozenset[int]] = {}
        for paragraph, own in zip(chosen, sentences, strict=True):
            found = dips(np.stack(list(islice(rows, len(own)))))
            breaks[paragraph.start] = frozenset(
                end for end, dip in zip(paragraph.unit_ends, found, strict=False) if dip
            )
        return [replace(p, breaks=breaks.get(p.start)) for p in paragraphs]
