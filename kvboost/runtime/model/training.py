"""Training mode: dropout draws anew in every pass, so K/V computed under it are worth nothing to anybody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_DRAWS = ("dropout", "drop", "jitter", "pdrop")


def random_module(model: nn.Module) -> str | None:
    """Return the path of a module in training mode that draws at random, or None."""
    drawing = (name for name, module in model.named_modules() if module.training and _draws(module))
    return next(drawing, None)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have all modules in evaluation mode inside, and each as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _draws(module: nn.Module) -> bool:
    return _is_dropout(module) or _names_dropout(module)


def _is_dropout(module: nn.Module) -> bool:
    # All of torch's dropout layers keep their probability as `p`.
    return "dropout" in type(module).__name__.lower() and bool(getattr(module, "p", 0.0))


def _names_dropout(module: nn.Module) -> bool:
    """Return whether a module keeps a probability for torch's dropout function."""
    return any(
        isinstance(value, float) and value > 0.0 and any(word in name for word in _DRAWS)
        for name, value in vars(module).items()
    )
