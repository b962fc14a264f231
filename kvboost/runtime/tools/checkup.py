"""A loaded model, examined as :func:`kvboost.boost` would, with everything timed and judged anew."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvboost.assets import default_cache_dir
from kvboost.runtime.attention.recording import attention_of
from kvboost.runtime.cost.calibrate import Calibration, calibrate, calibration_path
from kvboost.runtime.model.fingerprint import namespace_of
from kvboost.runtime.model.rope import Rope
from kvboost.runtime.model.support import MASKED_ATTENTION, ModelSupport, examine
from kvboost.runtime.model.verdicts import write_kept
from kvboost.runtime.prepare.prefix_check import refuse
from kvboost.runtime.prepare.startup_check import run_gate, run_prefix_check
from kvboost.types import Namespace

CALIBRATION_BUDGET_S = 5.0


@dataclass(frozen=True, slots=True)
class Checkup:
    """What was found.

    Attributes
    ----------
    attention
        The attention implementation that the model was loaded with.
    rope
        How its keys are rotated, in words.
    support
        With the start-up gate's verdict.
    gate
        What the gate found wrong; empty if it passed; None if it was not run, since nothing is left to be checked.
    """

    architecture: str
    dtype: str
    device: str
    attention: str
    rope: str
    max_context_tokens: int | None
    support: ModelSupport
    gate: str | None
    namespace: Namespace
    calibration: Calibration


def check_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Checkup:
    """Examine ``model``; the calibration is kept for the next start.

    Raises
    ------
    ModelSupportError
        If its K/V cannot be cached at all.
    """
    support = examine(model)
    namespace = namespace_of(model, tokenizer, support)
    if refused := run_prefix_check(model, support):
        raise refuse(model, refused)
    gate = run_gate(model, support) if not support.reason else None
    calibration = calibrate(model, support, CALIBRATION_BUDGET_S)
    if calibration.complete:
        write_kept(calibration_path(default_cache_dir(), model, namespace), asdict(calibration))
    return Checkup(
        architecture=type(model).__name__,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        attention=attention_of(model),
        rope=_rope_in_words(support.ropes),
        max_context_tokens=getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None),
        support=support.without_approximate(gate) if gate else support,
        gate=gate,
        namespace=namespace,
        calibration=calibration,
    )


def other_attention(check: Checkup) -> tuple[str, ...]:
    """Return the implementations that would also serve every tier."""
    return tuple(name for name in MASKED_ATTENTION if name != check.attention)


def _rope_in_words(ropes: tuple[Rope | None, ...]) -> str:
    kinds: dict[Rope | None, int] = {}
    for rope in ropes:
        kinds[rope] = kinds.get(rope, 0) + 1
    words = [
        f"{count} layers without rotation"
        if rope is None
        else f"{count} layers {rope.pairing.value} over {rope.rotary_dim} dimensions"
        for rope, count in kinds.items()
    ]
    return ", ".join(words)
