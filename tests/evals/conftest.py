"""A bench over a tiny model: evals end to end in seconds."""

from __future__ import annotations

import pytest

from evals._bench import Bench
from kvboost.config import Config
from tests.fakes import NgramEmbedder
from tests.tiny_models import tiny_model, tiny_tokenizer


@pytest.fixture(scope="session")
def bench() -> Bench:
    """A random Llama that reads 4,096 tokens, and an embedder that needs no loading."""
    model = tiny_model("llama", max_position_embeddings=4096)
    return Bench(model, tiny_tokenizer(model_max_length=4096), Config(), NgramEmbedder())
