"""What tests of several commands need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_models import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that a tiny model and its tokenizer are loaded from."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
