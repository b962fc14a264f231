"""One call of ``generate()``: its arguments by name, and what it returned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from kvboost.policy import ReusePolicy

# The parameters of transformers' generate() after `inputs`, in order.
_POSITIONAL = (
    "generation_config", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "synced_gpus",
    "assistant_model", "streamer", "negative_prompt_ids", "negative_prompt_attention_mask", "custom_generate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call to ``generate()``, and when it began."""

    inputs: Tensor | None
    arguments: dict[str, Any]
    policy: ReusePolicy | None
    start_s: float

    def again(self) -> Call:
        """Return the same call for a second run; a streamer was handed the prompt by the first."""
        streamer = self.arguments.get("streamer")
        if streamer is None:
            return self
        return replace(self, arguments={**self.arguments, "streamer": _WithoutPrompt(streamer)})


class _WithoutPrompt:
    """Hands a streamer everything but the prompt, which comes first."""

    def __init__(self, streamer: Any) -> None:
        self._streamer = streamer
        self._begun = False

    def put(self, value: Tensor) -> None:
        if self._begun:
            self._streamer.put(value)
        self._begun = True

    def end(self) -> None:
        self._streamer.end()


def named_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Name the positional arguments of ``generate()`` after ``inputs``.

    Raises
    ------
    TypeError
        If there are too many, or one is given twice; as Python itself does.
    """
    if len(args) > len(_POSITIONAL):
        raise TypeError(f"generate() takes at most {len(_POSITIONAL) + 1} positional arguments, not {len(args) + 1}")
    named = dict(zip(_POSITIONAL, args, strict=False))
    twice = named.keys() & kwargs.keys()
    if twice:
        raise TypeError(f"generate() got multiple values for argument {min(twice)!r}")
    return {**named, **kwargs}


def sequences(result: Any) -> Tensor:
    """Return the token ids in a result of ``generate()``, ``[rows, length]``."""
    ids: Tensor = result if isinstance(result, Tensor) else result.sequences
    return ids


def end_tokens(model: PreTrainedModel) -> frozenset[int]:
    """Return the tokens that end an answer."""
    ends = model.generation_config.eos_token_id
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])
