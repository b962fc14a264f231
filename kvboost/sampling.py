"""How the next token is chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from kvboost.errors import InputError
from kvboost.texts import check_text

MAX_SEED = 2**64 - 1
MAX_TOP_K = 2**32 - 1
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class Sampling:
    """The choice of answer tokens; None takes the model's own generation default.

    Attributes
    ----------
    temperature
        Softmax temperature, at least 0; 0 takes the most likely token, whatever ``top_p`` and ``top_k`` say.
    top_p
        Draw from the smallest set of tokens whose probability reaches this, in ``(0, 1]``.
    top_k
        Draw from so many of the most likely tokens; 0 for all, below ``2**32``.
    seed
        Makes random draws repeatable, in ``[0, 2**64)``.
    repetition_penalty
        Divides the positive logits of tokens that the prompt or the answer holds already, and multiplies the negative
        ones; above 0, 1 changes nothing.
    stop
        Texts that end the answer, at most 64 of 1,024 characters each; none of them becomes part of it.

    Raises
    ------
    InputError
        If a value is out of range; the sentence names the field.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "repetition_penalty"):
            _check_kind(name, getattr(self, name), Real, "a number")
        for name in ("top_k", "seed"):
            _check_kind(name, getattr(self, name), Integral, "a whole number")
        # NaN fails every comparison, so it is refused here as well.
        if self.temperature is not None and not 0.0 <= self.temperature < math.inf:
            raise InputError(f"temperature {self.temperature} must be a number of at least 0; 0 is greedy")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p {self.top_p} must lie in (0, 1]: it is a probability")
        if self.top_k is not None and not 0 <= self.top_k <= MAX_TOP_K:
            raise InputError(f"top_k {_short(self.top_k)} must lie in [0, 2**32); 0 considers all tokens")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise InputError(f"seed {_short(self.seed)} must lie in [0, 2**64)")
        penalty = self.repetition_penalty
        if penalty is not None and not 0.0 < penalty < math.inf:
            raise InputError(f"repetition_penalty {penalty} must be a number above 0; 1 changes nothing")
        object.__setattr__(self, "stop", _checked_stops(self.stop))

    @property
    def draws(self) -> bool | None:
        """Whether tokens are drawn at random; None leaves it to the model's defaults."""
        if self.temperature is not None:
            return self.temperature > 0.0
        return True if self.top_p is not None or self.top_k is not None else None


def _check_kind(name: str, value: object, kind: type, what: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
        raise InputError(f"{name} must be {what}, not {type(value).__name__}")


def _short(number: int) -> str:
    """Return a number that may have too many digits to be printed."""
    return str(number) if int(number).bit_length() <= 128 else f"of {int(number).bit_length()} bits"


def _checked_stops(stop: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stop, str):
        raise InputError("stop must be a list of texts, not one text")
    stops = tuple(stop)
    if len(stops) > MAX_STOPS:
        raise InputError(f"stop holds {len(stops)} texts; give at most {MAX_STOPS}")
    for i, text in enumerate(stops):
        check_text(text, f"stop[{i}]")
        if not text:
            raise InputError("stop must not hold an empty text: it would end every answer at once")
        if len(text) > MAX_STOP_CHARACTERS:
            raise InputError(f"stop[{i}] has {len(text)} characters; give at most {MAX_STOP_CHARACTERS}")
    return stops


GREEDY = Sampling(temperature=0.0)
