"""A static embedding distilled from a sentence-transformers model: one vector a token, no attention.

The recipe is that of Model2Vec (Tulkens and van Dongen, 2024): each token of the vocabulary is embedded alone, the
main directions are kept by a principal component analysis, and frequent tokens are damped. The words of a WordPiece
vocabulary are in order of frequency, so a word's rank stands for its frequency (Zipf's law). The result is a
sentence-transformers model of its own (its ``StaticEmbedding``). A text is the mean of its tokens, in any order:
paraphrases that share few words come out further apart than with the model that it was distilled from.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from blake3 import blake3
from torch import Tensor

from kvboost.assets import Progress, build_once, default_cache_dir
from kvboost.index.embedder import SentenceTransformerEmbedder, check_embedder_library

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DIM = 256

_RECIPE = b"1"
_BATCH = 1024
# Smooth inverse frequency (Arora et al., 2017), and the offset in Mandelbrot's form of Zipf's law.
_SIF = 1e-4
_RANK_OFFSET = 2.7


def static_embedder_dir(
    source: str | Path, cache_dir: str | Path | None = None, progress: Progress | None = None
) -> Path:
    """Return a directory with the static embedding of ``source``, distilled at the first call.

    Distilling all-MiniLM-L6-v2 takes some 20 CPU-seconds; later calls find the result in the cache directory.

    Parameters
    ----------
    source
        Directory or hub id of a sentence-transformers model with a WordPiece tokenizer.

    Raises
    ------
    AssetError
        If the cache directory cannot be written.
    """
    name = SentenceTransformerEmbedder(source).name
    digest = blake3(_RECIPE + name.encode()).hexdigest()[:12]
    root = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    target = root / f"static-{Path(source).name}-{digest}"
    with build_once(target) as scratch:
        if scratch is not None:
            with (progress or contextlib.nullcontext)(f"Distilling a static embedding from {Path(source).name}"):
                distil(source).save(str(scratch), create_model_card=False)
    return target


def distil(source: str | Path, dim: int = DIM) -> SentenceTransformer:
    """Return a static embedding of at most ``dim`` dimensions with the vocabulary of ``source``."""
    check_embedder_library()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    model = SentenceTransformer(str(source), device="cpu")
    words = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
    words.no_truncation()
    vectors = _token_vectors(model, model.tokenizer, dim)
    return SentenceTransformer(modules=[StaticEmbedding(words, embedding_weights=vectors)], device="cpu")


@torch.no_grad()
def _token_vectors(model: Any, tokenizer: Any, dim: int) -> Tensor:
    """Return one vector for each token, ``[vocabulary, dim]``."""
    ids = torch.tensor([[tokenizer.cls_token_id, i, tokenizer.sep_token_id] for i in range(len(tokenizer))])
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
