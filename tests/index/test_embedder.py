"""The sentence-transformers embedder, on a tiny random model and on the real one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kvboost.assets import embedder_dir
from kvboost.errors import InputError
from kvboost.index import LocalCache, SentenceTransformerEmbedder
from kvboost.types import Chunk, MatchQuery, NewChunk, PutRequest, Span, Tier
from tests.contracts.chunks import namespace, payload_of

TEXTS = ["a cat sat", "a dog ran over the hill and back", "b", "a cat sat down"]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a one-layer random BERT with mean pooling, as a sentence-transformers directory."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    root = tmp_path_factory.mktemp("embedder")
    words = sorted({w for text in TEXTS for w in text.split()})
    (root / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    bert = root / "bert"
    config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertModel(config).save_pretrained(bert)
    BertTokenizerFast(str(root / "vocab.txt")).save_pretrained(bert)
    body = Transformer(str(bert), max_seq_length=32)
    SentenceTransformer(modules=[body, Pooling(16)], device="cpu").save(str(root / "model"))
    return root / "model"


def test_rows_are_unit_vectors_whatever_the_batch(tiny_model: Path) -> None:
    rows = SentenceTransformerEmbedder(tiny_model, device="cpu", batch_size=2).embed(TEXTS)
    assert (rows.shape, rows.dtype) == ((4, 16), np.float32)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)
    embedder = SentenceTransformerEmbedder(str(tiny_model), device="cpu")
    for row, text in zip(rows, TEXTS, strict=True):
        np.testing.assert_allclose(embedder.embed([text])[0], row, atol=1e-5)
    assert embedder.dim == 16
    assert embedder.embed([]).shape == (0, 16)


def test_the_name_tells_models_apart_without_loading_them(tiny_model: Path, tmp_path: Path) -> None:
    name = SentenceTransformerEmbedder(tiny_model).name
    assert name.startswith("model@")
    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    assert SentenceTransformerEmbedder(copy).name == name
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert SentenceTransformerEmbedder(copy).name != name
    assert SentenceTransformerEmbedder("org/model", revision="abc").name == "org/model@abc"


def test_several_threads_may_embed_at_once(tiny_model: Path) -> None:
    embedder = SentenceTransformerEmbedder(tiny_model, device="cpu")
    wanted = embedder.embed(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(lambda _: embedder.embed(TEXTS), range(24)):
            np.testing.assert_allclose(rows, wanted, atol=1e-6)


def test_bad_settings_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a directory"):
        SentenceTransformerEmbedder(tmp_path / "nowhere")
    with pytest.raises(InputError, match="batch_size"):
        SentenceTransformerEmbedder("x", batch_size=0)


def test_importing_the_index_loads_neither_torch_nor_sentence_transformers() -> None:
    code = "import sys, kvboost.index; sys.exit(bool({'torch', 'sentence_transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.real_model
def test_the_real_model_nominates_an_edited_chunk() -> None:
    embedder = SentenceTransformerEmbedder(embedder_dir(), device="cpu")
    assert embedder.dim == 384
    stored = "The committee approved a budget of 120 million for the new bridge across the river in 2023."
    edited = stored.replace("120", "150")
    other = "Penguins raise their young on ice that lasts through the southern winter."
    ns = namespace()
    cache = LocalCache(1 << 20, embedder)
    cache.open(ns)
    chunks = tuple(
        NewChunk(Span(i, i + 16), text, True, payload_of(tuple(range(i, i + 16)), i))
        for i, text in ((0, other), (16, stored))
    )
    cache.put(PutRequest(ns.key, tuple(range(32)), chunks))
    cache.flush()
    tokens = tuple(range(100, 116))
    (match,) = cache.match(MatchQuery(ns.key, tokens, (Chunk(Span(0, 16), edited),), 0.8)).matches
    assert (match.tier, match.donor.token_ids) == (Tier.SIMILAR, tuple(range(16, 32)))
    assert 0.8 < match.similarity < 1.0
    cache.close()
