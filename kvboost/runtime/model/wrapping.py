"""The model inside what is wrapped around it."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from kvboost.errors import InputError, ModelSupportError

_COMPILED = "_orig_mod"  # where torch.compile() keeps what it was given


def innermost(model: Any) -> PreTrainedModel:
    """Return the model of transformers whose ``generate()`` runs when that of ``model`` is called.

    That is the one inside a ``PeftModel`` or a module made by ``torch.compile``.

    Raises
    ------
    ModelSupportError
        If the wrapper puts virtual tokens before each prompt.
    InputError
        If it is no model of transformers, nor around one.
    """
    if isinstance(model, PreTrainedModel):
        return model
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        if model.active_peft_config.is_prompt_learning:
            kind = getattr(model.active_peft_config.peft_type, "value", model.active_peft_config.peft_type)
            raise ModelSupportError(
                f"{kind} puts virtual tokens before each prompt, which no chunk stands for; "
                "boost the model without it: model.get_base_model()"
            )
        return innermost(model.get_base_model())
    if hasattr(model, _COMPILED):
        return innermost(getattr(model, _COMPILED))
    raise InputError(
        f"model must be a model of transformers (PreTrainedModel) or a PeftModel around one, not {type(model).__name__}"
    )
