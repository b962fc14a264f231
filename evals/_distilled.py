"""A static embedding distilled from a sentence-transformers model: one vector a token, no attention.

The recipe is that of Model2Vec (Tulkens and van Dongen, 2024): each token of the vocabulary is embedded alone, the
main directions are kept by a principal component analysis, and frequent tokens are damped. The words of a WordPiece
vocabulary are in order of frequency, so a word's rank stands for its frequency (Zipf's law).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvboost.protocols import Vectors

_DIM = 256
_BATCH = 1024
# Smooth inverse frequency (Arora et al., 2017), and the offset in Mandelbrot's form of Zipf's law.
_SIF = 1e-4
_RANK_OFFSET = 2.7


class DistilledEmbedder:
    """Means of token vectors; an :class:`~kvboost.protocols.Embedder`. Distilling takes some 20 CPU-seconds.

    Parameters
    ----------
    source
        Directory or hub id of the sentence-transformers model.
    """

    def __init__(self, source: str | Path, dim: int = _DIM) -> None:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(source), device="cpu")
        self._tokenizer: Any = model.tokenizer
        self._vectors = _distil(model, self._tokenizer, dim)
        self.name = f"static, distilled from {Path(source).name}"

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._vectors.shape[1]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``[len(texts), dim]`` float32 rows of unit length."""
        found = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        # A text without a known token would be a zero vector, which has no direction.
        ids = [own or [self._tokenizer.unk_token_id] for own in found]
        offsets = torch.tensor([0, *(len(own) for own in ids[:-1])]).cumsum(0)
        flat = torch.tensor([token for own in ids for token in own])
        rows = torch.nn.functional.embedding_bag(flat, self._vectors, offsets, mode="mean")
        unit: Vectors = torch.nn.functional.normalize(rows, dim=1).numpy().astype(np.float32)
        return unit


@torch.no_grad()
def _distil(model: Any, tokenizer: Any, dim: int) -> Tensor:
    """Return one vector for each token, ``[vocabulary, dim]``."""
    count = len(tokenizer)
    ids = torch.tensor([[tokenizer.cls_token_id, i, tokenizer.sep_token_id] for i in range(count)])
    rows = [
        model({"input_ids": part, "attention_mask": torch.ones_like(part)})["sentence_embedding"]
        for part in torch.split(ids, _BATCH)
    ]
    vectors = torch.cat(rows).double()
    vectors -= vectors.mean(dim=0)
    _, basis = torch.linalg.eigh(vectors.T @ vectors)  # ascending
    likely = 1.0 / (_ranks(tokenizer).double() + _RANK_OFFSET)
    likely /= likely.sum()
    projected = vectors @ basis[:, -dim:].flip(1)
    damped: Tensor = projected * (_SIF / (_SIF + likely))[:, None]
    return damped.float()


def _ranks(tokenizer: Any) -> Tensor:
    """Return the rank of each token by frequency, from 1.

    Special tokens, punctuation and single Latin letters count as most frequent, single characters of other scripts,
    which stand in front of all words, as rare.
    """
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    ranks, rank = [], 1
    for word in words:
        if len(word) == 1:
            ranks.append(1 if word.isascii() else len(words))
        elif word.startswith("[") and word.endswith("]"):
            ranks.append(1)
        else:
            ranks.append(rank)
            rank += 1
    return torch.tensor(ranks)
