"""The static embedding that the embedders eval distils."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evals._distilled import DistilledEmbedder

_WORDS = ("the", "of", "river", "mountain", "table", "music")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> DistilledEmbedder:
    """Distil a one-layer random BERT that knows six words and the comma."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    root = tmp_path_factory.mktemp("distilled")
    (root / "vocab.txt").write_text("\n".join([*_SPECIAL, ",", *_WORDS]), encoding="utf-8")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=12, **sizes)).save_pretrained(root / "bert")
    BertTokenizerFast(str(root / "vocab.txt")).save_pretrained(root / "bert")
    model = SentenceTransformer(modules=[Transformer(str(root / "bert")), Pooling(16)], device="cpu")
    model.save(str(root / "model"))
    return DistilledEmbedder(Path(root / "model"))


def test_a_text_is_the_mean_of_its_tokens_whatever_their_order(distilled: DistilledEmbedder) -> None:
    texts = ["river", "river river", "mountain table river", "river table mountain", "music"]
    rows = distilled.embed(texts)
    assert rows.shape == (5, distilled.dim)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    np.testing.assert_allclose(rows[2], rows[3], atol=1e-6)
    assert abs(float(rows[0] @ rows[4])) < 0.99


def test_frequent_words_and_punctuation_move_a_text_less_than_rare_ones(distilled: DistilledEmbedder) -> None:
    plain, common, comma, rare = distilled.embed(["river", "river the", "river ,", "river music"])
    assert float(plain @ common) > float(plain @ rare)
    assert float(plain @ comma) > float(plain @ rare)


def test_texts_without_a_known_word_have_a_direction(distilled: DistilledEmbedder) -> None:
    rows = distilled.embed(["", "别的", "river"])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
