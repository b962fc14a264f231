"""A saved index comes back whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvboost.errors import IndexFileError
from kvboost.index.vectors import VectorIndex
from kvboost.index.vectors_file import MAGIC, load, save
from tests.contracts.vector_index import random_units

DIM = 16


def made(n: int = 300) -> VectorIndex:
    index = VectorIndex(DIM)
    index.add([7 * i for i in range(n)], random_units(0, n, DIM))
    return index


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    index = made()
    assert save(index, tmp_path / "v.index", "mini@1") == 300
    again = load(tmp_path / "v.index", "mini@1", DIM)
    queries = random_units(1, 50, DIM)
    for threshold in (-1.0, 0.5, 0.8, 0.95):
        assert again.search(queries, 5, threshold) == index.search(queries, 5, threshold)
    # It goes on living.
    assert again.remove([0, 7]) == 2
    again.add([1], random_units(3, 1, DIM))
    assert len(again) == 299
    assert [path.name for path in tmp_path.iterdir()] == ["v.index"]


def test_an_empty_index_comes_back(tmp_path: Path) -> None:
    assert save(made(0), tmp_path / "v", "mini@1") == 0
    assert len(load(tmp_path / "v", "mini@1", DIM)) == 0


@pytest.mark.parametrize(("embedder", "dim", "named"), [("mini@2", DIM, "embedder"), ("mini@1", 17, "dim")])
def test_a_foreign_one_is_refused(embedder: str, dim: int, named: str, tmp_path: Path) -> None:
    save(made(), tmp_path / "v", "mini@1")
    with pytest.raises(IndexFileError, match=named):
        load(tmp_path / "v", embedder, dim)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", MAGIC, MAGIC + b"\xff" * 40])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(IndexFileError):
        load(tmp_path / "v", "mini@1", DIM)


def test_a_missing_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexFileError, match="cannot be read"):
        load(tmp_path / "v", "mini@1", DIM)


def test_a_damaged_one_is_refused(tmp_path: Path) -> None:
    save(made(), tmp_path / "v", "mini@1")
    whole = (tmp_path / "v").read_bytes()
    places = np.random.default_rng(0).integers(len(whole), size=60)
    for place in [0, 9, 14, len(whole) - 1, *places.tolist()]:
        flipped = bytearray(whole)
        flipped[place] ^= 0x10
        (tmp_path / "v").write_bytes(flipped)
        with pytest.raises(IndexFileError):
            load(tmp_path / "v", "mini@1", DIM)
    for end in (10, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        (tmp_path / "v").write_bytes(whole[:end])
        with pytest.raises(IndexFileError):
            load(tmp_path / "v", "mini@1", DIM)
    (tmp_path / "v").write_bytes(whole + b"\0")
    with pytest.raises(IndexFileError):
        load(tmp_path / "v", "mini@1", DIM)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = made()
    save(index, tmp_path / "v", "mini@1")
    before = (tmp_path / "v").read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvboost.index.vectors_file.os.fsync", fail)
    with pytest.raises(IndexFileError, match="No space"):
        save(index, tmp_path / "v", "mini@1")
    assert (tmp_path / "v").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["v"]


def test_no_folder_no_file(tmp_path: Path) -> None:
    with pytest.raises(IndexFileError, match="cannot be written"):
        save(made(), tmp_path / "none" / "v", "mini@1")
