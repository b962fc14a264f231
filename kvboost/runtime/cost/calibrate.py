"""Timing this machine with this model, once: short forward passes, copying and re-rotating K/V.

It takes well under a second and is kept in the user's cache directory, under everything that the speed depends on. A
machine that is too slow or too busy for that is not kept waiting: what is missing then, and what short passes cannot
tell of long ones, is learnt from the requests themselves (:class:`kvboost.runtime.cost.cost_gate.Costs`).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from kvboost.assets import default_cache_dir
from kvboost.runtime.attention.transformers_api import attention_name
from kvboost.runtime.cost.model import CostModel, TimedPass, fit
from kvboost.runtime.kv.codec import TORCH_DTYPES
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.model.device import synchronize
from kvboost.runtime.model.machine import cpu_name
from kvboost.runtime.model.rope import rotate
from kvboost.runtime.model.support import ModelSupport, last_logits_only
from kvboost.runtime.model.verdicts import read_kept, write_kept
from kvboost.types import Namespace

SHORT_TOKENS, LONG_TOKENS, CONTEXT_TOKENS = 8, 64, 2048
# Where launching kernels takes longer than running them, short passes all take the same time.
LONG_TOKENS_ON_GPU = 512
# More than most processors' caches hold, as a request's K/V are.
MOVED_BYTES = 32 << 20
ROUNDS = 2
LENGTHS_APART = 4
BUDGET_S = 0.6
"""No pass is begun after so many seconds."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was timed; ``complete`` says whether there was time for every kind of pass."""

    passes: tuple[TimedPass, ...]
    copy_byte_s: float
    rotate_byte_s: float
    complete: bool = True

    def model(self, seen: Iterable[TimedPass] = ()) -> CostModel | None:
        """Return the costs that explain these timings and those of passes ``seen`` since.

        None while all passes are of much the same length: what a token costs cannot be told then.
        """
        passes = [*self.passes, *seen]
        lengths = [one.new_tokens for one in passes]
        if max(lengths) < LENGTHS_APART * min(lengths):
            return None
        return fit(passes, self.copy_byte_s, self.rotate_byte_s)


def calibrated(
    model: PreTrainedModel, support: ModelSupport, namespace: Namespace, cache_dir: Path | None = None
) -> Calibration:
    """Return the calibration on file, or time the machine now and keep the result for the next start."""
    path = calibration_path(cache_dir or default_cache_dir(), model, namespace)
    kept = _read(read_kept(path))
    if kept is not None:
        return kept
    fresh = calibrate(model, support)
    if fresh.complete:
        write_kept(path, asdict(fresh))
    return fresh


@torch.no_grad()
def calibrate(model: PreTrainedModel, support: ModelSupport, budget_s: float = BUDGET_S) -> Calibration:
    """Time the machine now; no forward pass is begun after ``budget_s``, but one is always run."""
    copy_byte_s, rotate_byte_s = _moves(model, support)
    best, complete = _passes(model, support, budget_s)
    return Calibration(best, copy_byte_s, rotate_byte_s, complete)


def calibration_path(cache_dir: Path, model: PreTrainedModel, namespace: Namespace) -> Path:
    """Return where the calibration is kept: under all that the speed depends on."""
    text = f"1 {replace(namespace, tenant='').key} {torch.__version__} {transformers.__version__} {model.device.type}"
    text += f" {attention_name(model)} {machine_name(model)} {torch.get_num_threads()}"
    return cache_dir / "calibrations" / f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.json"


def machine_name(model: PreTrainedModel) -> str:
    """Return the name of the processor that ``model`` runs on."""
    if model.device.type == "cuda":
        return torch.cuda.get_device_name(model.device)
    return cpu_name()


def _passes(model: PreTrainedModel, support: ModelSupport, budget_s: float) -> tuple[tuple[TimedPass, ...], bool]:
    """Return the faster of two passes of each size, and whether there was time for each size."""
    config = model.config.get_text_config(decoder=True)
    longest = LONG_TOKENS_ON_GPU if model.device.type == "cuda" else LONG_TOKENS
    limit = getattr(config, "max_position_embeddings", None) or CONTEXT_TOKENS + longest
    limit = min(limit, support.longest_prompt or limit)
    short, long = min(SHORT_TOKENS, limit), min(longest, limit)
    # Some count positions from the padding token's id on, and their context holds so many tokens less.
    context = max(min(CONTEXT_TOKENS, limit - long - SHORT_TOKENS), 0)
    cache = SlabCache(support.layout, context + long, model.device)

    def run(new_tokens: int, context_tokens: int) -> TimedPass:
        ids = torch.full((1, new_tokens), min(257, config.vocab_size - 1), device=model.device)

        def forward() -> None:
            cache.set_length(context_tokens)
            model(input_ids=ids, cache=cache, use_cache=True, **last_logits_only(model))

        return TimedPass(new_tokens, context_tokens, _timed(forward, model.device))

    # The first pass of a size also sets up kernels and memory, hence the second round.
    sizes = list(dict.fromkeys([(short, 0), (long, 0), (long, context)]))
    best: dict[tuple[int, int], TimedPass] = {}
    started_s = time.perf_counter()
    for size in sizes * ROUNDS:
        if best and time.perf_counter() - started_s > budget_s:
            break
        timed = run(*size)
        if size not in best or timed.seconds < best[size].seconds:
            best[size] = timed
    return tuple(best.values()), len(best) == len(sizes)


def _moves(model: PreTrainedModel, support: ModelSupport) -> tuple[float, float]:
    """Return seconds per byte of copying K/V into a slab, and of re-rotating keys into it."""
    layout, device = support.layout, model.device
    dtype = TORCH_DTYPES[layout.dtype]
    tokens = MOVED_BYTES // (layout.num_layers * layout.num_kv_heads * layout.key_dim * dtype.itemsize)
    shape = (layout.num_layers, layout.num_kv_heads, max(tokens, 1), layout.key_dim)
    keys, slab = torch.ones(shape, dtype=dtype), torch.zeros(shape, dtype=dtype, device=device)
    nbytes = keys.numel() * dtype.itemsize
    copy_s = min(_timed(lambda: slab.copy_(keys), device) for _ in range(2))
    rope = next((rope for rope in support.ropes if rope is not None), None)
    if rope is None:
        return copy_s / nbytes, copy_s / nbytes
    cos, sin = rope.angles(torch.tensor([1], device=device))
    rotate_s = min(_timed(lambda: rotate(keys.to(device), cos, sin, rope, slab), device) for _ in range(2))
    return copy_s / nbytes, rotate_s / nbytes


def _timed(work: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    started_s = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started_s


def _read(value: object) -> Calibration | None:
    """Return the calibration of a file's value; None where it is none, or holds impossible times."""
    try:
        passes = tuple(
            TimedPass(int(p["new_tokens"]), int(p["context_tokens"]), float(p["seconds"]))
            for p in value["passes"]  # type: ignore[index]
        )
        found = Calibration(passes, float(value["copy_byte_s"]), float(value["rotate_byte_s"]))  # type: ignore[index]
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    times = [found.copy_byte_s, found.rotate_byte_s, *(p.seconds for p in passes)]
    sound = passes and all(0.0 < t < math.inf for t in times)
    return found if sound and all(p.new_tokens > 0 <= p.context_tokens for p in passes) else None
