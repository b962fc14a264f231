"""What servers need from this machine and the registry, seen to before they are started in another folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvboost.config import Config

from .progress import step


def absolute(name: str) -> str:
    """Return the name of a model; a directory in full, because the servers run in another folder."""
    return str(Path(name).resolve()) if name and Path(name).is_dir() else name


def with_absolute_paths(config: Config) -> Config:
    """Return ``config`` with the directories of its models in full."""
    return replace(
        config,
        model=replace(config.model, name_or_path=absolute(config.model.name_or_path)),
        embedder=replace(config.embedder, model=absolute(config.embedder.model)),
    )


def fetch_assets(config: Config) -> None:
    """Get what the registry has, with progress, before the servers need it.

    Raises
    ------
    AssetError
        If the registry cannot be reached.
    """
    from kvboost.build import build_embedder
    from kvboost.runtime.model.demo_model import demo_model_dir

    if not config.model.name_or_path:
        demo_model_dir(progress=step)
    build_embedder(config.embedder, progress=step)
