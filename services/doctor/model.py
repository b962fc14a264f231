"""The model: what it supports, and how fast this machine runs it."""

from __future__ import annotations

import math
from collections.abc import Collection

from kvboost.config import Config
from kvboost.errors import KVBoostError
from kvboost.runtime.cost.meter import FetchCost
from kvboost.runtime.cost.model import CostModel
from kvboost.runtime.model.demo_model import load_model
from kvboost.runtime.model.loading import local_model_dir
from kvboost.runtime.tools.checkup import Checkup, check_up, other_attention
from kvboost.types import KVLayout, Tier

from ..progress import step
from .finding import Examination, Notes
from .software import flash_attention_installed

TIERS = (Tier.PREFIX, Tier.EXACT, Tier.SIMILAR, Tier.SUBSTITUTE)
PROMPTS = (1024, 4096, 8192)


def examine_model(config: Config, download: bool) -> tuple[Examination, Checkup | None]:
    """Load the configured model, if it is on this machine or may be downloaded, and examine it."""
    notes = Notes("model")
    chosen = config.model
    name = chosen.name_or_path or "the demo model (SmolLM2-135M-Instruct)"
    found = local_model_dir(chosen.name_or_path, chosen.revision)
    notes.figures |= {"model": chosen.name_or_path, "model_dir": str(found) if found else None}
    if found is None and not download:
        notes.note(f"{name} is not on this machine, so nothing was tried with a model", "kvboost doctor --download")
        return notes.done(), None
    source = str(found) if found is not None else chosen.name_or_path or None
    try:
        model, tokenizer = load_model(
            source, chosen.dtype, device=chosen.device, revision="" if found else chosen.revision, progress=step
        )
        with step("Checking and timing the model"):
            check = check_up(model, tokenizer)
    except KVBoostError as error:
        notes.broken(f"{name}: {error}", "name another model with --model, or in model.name_or_path")
        return notes.done(), None
    _describe(notes, name, check)
    _look_at_attention(notes, check, flash_attention_installed())
    _look_at_tiers(notes, check, config.policy.tiers)
    return notes.done(), check


def examine_speed(check: Checkup, fetch: FetchCost | None) -> Examination:
    """Estimate prefill and reuse from what was timed."""
    notes = Notes("speed")
    costs = check.calibration.model()
    if costs is None:
        notes.warn("one short pass takes too long to time others", "use a smaller model, more cores or a GPU")
        return notes.done()
    speeds = {n: n / costs.forward_s(n) for n in PROMPTS if n <= (check.max_context_tokens or n)}
    copy, rotate = (1 / s / 1e9 for s in (costs.copy_byte_s, costs.rotate_byte_s))
    notes.figures |= {
        "prefill_tokens_per_s": {str(n): speed for n, speed in speeds.items()},
        "copy_gb_per_s": copy,
        "rotate_gb_per_s": rotate,
        "break_even_tokens": None,
    }
    shown = ", ".join(f"{n:,} tokens {speed:,.0f}/s" for n, speed in speeds.items())
    if shown:
        notes.ok(f"prefill, estimated from short passes: {shown}")
    notes.ok(f"K/V are copied into place at {copy:.2f} GB/s, re-rotated at {rotate:.2f} GB/s")
    if fetch is not None:
        _say_break_even(notes, break_even_tokens(costs, check.support.layout, fetch))
    return notes.done()


def break_even_tokens(costs: CostModel, layout: KVLayout, fetch: FetchCost) -> int | None:
    """Return how many tokens must be reused at a time to save anything; None if any number costs more.

    Each is fetched, and its keys re-rotated, instead of being computed in a pass that runs anyway; the round trip
    comes on top once.
    """
    rotated = layout.token_bytes * layout.key_dim / (layout.key_dim + layout.value_dim)
    moved_s = fetch.byte_s * layout.token_bytes + costs.place_s(layout.token_bytes - rotated, rotated)
    gained_s = costs.token_s - moved_s
    return max(1, math.ceil(fetch.round_trip_s / gained_s)) if gained_s > 0 else None


def _say_break_even(notes: Notes, tokens: int | None) -> None:
    notes.figures["break_even_tokens"] = tokens
    if tokens is None:
        notes.warn("fetching a token takes longer than computing it: hits are declined", "bring the cache nearer")
    else:
        notes.ok(f"break-even: reuse pays from {tokens:,} reused token{'s' if tokens > 1 else ''} in a prompt")


def _describe(notes: Notes, name: str, check: Checkup) -> None:
    layout = check.support.layout
    notes.figures |= {
        "architecture": check.architecture,
        "dtype": check.dtype,
        "device": check.device,
        "rope": check.rope,
        "attention": check.attention,
        "token_bytes": layout.token_bytes,
    }
    notes.ok(f"{name}: {check.architecture}, {check.dtype} on {check.device}")
    notes.ok(f"K/V of a token take {layout.token_bytes:,} bytes; RoPE: {check.rope}")
    if check.gate is None:
        notes.note("the start-up gate was not run: only the prefix tier is left anyway")
    elif check.gate:
        notes.warn(f"the start-up gate failed: {check.gate}", "report this with the model's name; reuse is reduced")
    else:
        notes.ok("the start-up gate passed: the splice equals full prefill, re-rotated keys equal fresh ones")


def _look_at_attention(notes: Notes, check: Checkup, flash_installed: bool) -> None:
    others = ", ".join(other_attention(check))
    flash = "is installed" if flash_installed else "is not installed"
    notes.figures["flash_attn_installed"] = flash_installed
    text = f"attention: {check.attention}; {others} would do too; flash-attn {flash}"
    if check.device.startswith("cuda") and not flash_installed:
        notes.note(text, "pip install 'kvboost-chunks[flash-attn]' for the prefix tier with flash_attention_2")
    else:
        notes.ok(text)


def _look_at_tiers(notes: Notes, check: Checkup, wanted: Collection[Tier]) -> None:
    allowed = [tier for tier in TIERS if tier in check.support.tiers]
    refused = [tier for tier in TIERS if tier not in check.support.tiers]
    off = [tier for tier in allowed if tier not in wanted]
    notes.figures |= {"tiers": list(allowed), "refused_tiers": list(refused), "refused_because": check.support.reason}
    notes.ok(f"tiers that are right with this model: {', '.join(allowed)}")
    if refused:
        notes.warn(
            f"tiers refused: {', '.join(refused)}, because {check.support.reason}",
            "only repetition from the start of a prompt is reused; choose a model with plain RoPE for more",
        )
    if off:
        notes.note(f"tiers that the policy leaves off: {', '.join(off)}", "list them in policy.tiers to use them")
