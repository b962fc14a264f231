"""The static embedding that is distilled from a sentence-transformers model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from kvboost import build
from kvboost.build import STATIC_BATCH, build_embedder
from kvboost.config import EmbedderConfig
from kvboost.index import SentenceTransformerEmbedder
from kvboost.index.embedder_static import distil, static_embedder_dir

_WORDS = ("the", "of", "river", "mountain", "table", "music")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a one-layer random BERT that knows six words and the comma."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    root = tmp_path_factory.mktemp("distilled")
    (root / "vocab.txt").write_text("\n".join([*_SPECIAL, ",", *_WORDS]), encoding="utf-8")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=12, **sizes)).save_pretrained(root / "bert")
    BertTokenizerFast(str(root / "vocab.txt")).save_pretrained(root / "bert")
    model = SentenceTransformer(modules=[Transformer(str(root / "bert")), Pooling(16)], device="cpu")
    model.save(str(root / "model"))
    return root / "model"


@pytest.fixture(scope="module")
def distilled(source: Path, tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformerEmbedder:
    root = static_embedder_dir(source, tmp_path_factory.mktemp("cache"))
    return SentenceTransformerEmbedder(root, device="cpu")


def _centred_lengths(source: Path) -> np.ndarray:
    """Return how far the comma and each word lie from the mean of the vocabulary, before they are damped."""
    from sentence_transformers import SentenceTransformer

    rows = SentenceTransformer(str(source), device="cpu").encode([*_SPECIAL, ",", *_WORDS])
    return np.asarray(np.linalg.norm(rows - rows.mean(axis=0), axis=1)[len(_SPECIAL) :])


def test_a_text_is_the_mean_of_its_tokens_whatever_their_order(distilled: SentenceTransformerEmbedder) -> None:
    texts = ["river", "river river", "mountain table river", "river table mountain", "music"]
    rows = distilled.embed(texts)
    assert rows.shape == (5, distilled.dim)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    np.testing.assert_allclose(rows[2], rows[3], atol=1e-6)
    assert abs(float(rows[0] @ rows[4])) < 0.99


def test_frequent_words_and_punctuation_weigh_less_than_rare_ones(source: Path) -> None:
    damped = distil(source)[0].embedding.weight.detach().numpy()
    comma, *weights = np.linalg.norm(damped, axis=1)[len(_SPECIAL) :] / _centred_lengths(source)
    assert comma == pytest.approx(weights[0], rel=1e-4)
    assert all(frequent < rare for frequent, rare in pairwise(weights))


def test_texts_without_a_known_word_have_a_direction(distilled: SentenceTransformerEmbedder) -> None:
    rows = distilled.embed(["", "别的", "river"])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)


def test_it_is_distilled_once_and_per_source(source: Path, tmp_path: Path) -> None:
    titles: list[str] = []

    @contextmanager
    def progress(title: str) -> Iterator[None]:
        titles.append(title)
        yield

    first = static_embedder_dir(source, tmp_path, progress)
    assert static_embedder_dir(source, tmp_path, progress) == first
    assert titles == ["Distilling a static embedding from model"]
    changed = tmp_path / "model"
    shutil.copytree(source, changed)
    (changed / "README.md").write_text("another model")
    assert static_embedder_dir(changed, tmp_path) != first


def test_static_is_a_setting(monkeypatch: pytest.MonkeyPatch, source: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "embedder_dir", lambda progress=None: source)
    embedder = build_embedder(EmbedderConfig(model="static"))
    assert embedder is not None
    assert embedder.name.startswith("static-model-")
    assert embedder.embed(["river"] * (STATIC_BATCH + 1)).shape == (STATIC_BATCH + 1, embedder.dim)
