"""Where a model lies on this machine, without downloading anything."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from kvboost.assets import default_cache_dir
from kvboost.runtime.model.demo_model import demo_model_path


def local_model_dir(name_or_path: str, revision: str = "") -> Path | None:
    """Return the directory of a model as :func:`~kvboost.runtime.model.demo_model.load_model` names it.

    None where it would have to be downloaded first. An empty name stands for the demo model.
    """
    if not name_or_path:
        demo = demo_model_path(default_cache_dir())
        return demo if demo.is_dir() else None
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    try:
        return Path(snapshot_download(name_or_path, revision=revision or None, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
