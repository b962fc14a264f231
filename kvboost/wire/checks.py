"""What the fields of a message can hold, checked before protobuf raises errors of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

from kvboost.errors import InputError

MAX_COUNT = (1 << 32) - 1


def check_count(value: object, field: str, bits: int = 32) -> int:
    """Return ``value`` if an unsigned field of so many bits can hold it.

    Raises
    ------
    InputError
        Naming ``field``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{field} must be a whole number, not {type(value).__name__}")
    number = int(value)
    if not 0 <= number < 1 << bits:
        raise InputError(f"{field} must lie in [0, 2**{bits})")
    return number


def check_counts(values: Sequence[int], field: str, bits: int = 32) -> Sequence[int]:
    """Return ``values`` if a repeated field of so many bits can hold them; errors as of :func:`check_count`."""
    try:
        kinds = set(map(type, values))
    except TypeError:
        raise InputError(f"{field} must be a sequence of whole numbers, not {type(values).__name__}") from None
    if strange := next((kind for kind in kinds if kind is bool or not issubclass(kind, Integral)), None):
        raise InputError(f"{field} must be whole numbers, not {strange.__name__}")
    if len(values) and not 0 <= min(values) <= max(values) < 1 << bits:
        raise InputError(f"{field} must lie in [0, 2**{bits})")
    return values


def check_seconds(value: object, field: str) -> float:
    """Return ``value`` if it is a time that a call can take.

    Raises
    ------
    InputError
        Naming ``field``.
    """
    seconds = float(value) if isinstance(value, Real) and not _is_bool(value) else math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"{field} {value!r} must be positive: it is a deadline in seconds")
    return seconds


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)
