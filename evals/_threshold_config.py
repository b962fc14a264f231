"""The recommended setting as a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvboost.config import Config, load
from kvboost.config.render import toml_value
from kvboost.errors import InputError

_KEYS = ("segment.min_tokens", "segment.max_tokens", "policy.tiers", "policy.threshold", "policy.repair",
         "policy.recompute_ratio", "policy.shift")  # fmt: skip


def to_setting(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return what sets a cell apart from the others, by the names of the configuration."""
    setting = {
        "segment.min_tokens": cell["min_tokens"],
        "segment.max_tokens": cell["max_tokens"],
        "policy.tiers": cell["tiers"].split("+"),
    }
    return setting if cell["threshold"] is None else {**setting, "policy.threshold": cell["threshold"]}


def write_config(path: Path, base: Config, cell: Mapping[str, Any], max_kl: float) -> None:
    """Write the setting of ``cell``, with the repair that it was measured with, as a file that ``--config`` takes.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    segment = replace(base.segment, min_tokens=cell["min_tokens"], max_tokens=cell["max_tokens"])
    policy = replace(base.policy, tiers=tuple(cell["tiers"].split("+")))
    if cell["threshold"] is not None:
        policy = replace(policy, threshold=cell["threshold"])
    config = replace(base, segment=segment, policy=policy)
    lines = [
        f"# Recommended by evals.threshold for a mean KL of at most {max_kl} to full prefill.",
        f"# Measured over {cell['n']} prompts: KL {cell['kl_mean']:.4f}, {cell['reuse_share']:.0%} reused.",
    ]
    section = ""
    for key in _KEYS:
        if key.partition(".")[0] != section:
            section = key.partition(".")[0]
            lines += ["", f"[{section}]"]
        lines.append(f"{key.partition('.')[2]} = {toml_value(config, key)}")
    try:
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--write-config {path} cannot be written: {error.strerror}") from error
    load(path)
