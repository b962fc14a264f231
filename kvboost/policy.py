"""What may be reused, and how much of it is recomputed all the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvboost.errors import PolicyError
from kvboost.types import Tier

DEFAULT_TIERS = (Tier.PREFIX, Tier.EXACT, Tier.SIMILAR)
REUSE_TIERS = (*DEFAULT_TIERS, Tier.SUBSTITUTE)
REPAIRS = ("none", "head", "deviation", "query", "head+query", "query+deviation", "random")


@dataclass(frozen=True, slots=True)
class ReusePolicy:
    """The user's rules for reuse.

    Attributes
    ----------
    tiers
        The tiers that may be reused, of ``prefix``, ``exact``, ``similar`` and ``substitute``, in any order. Only
        ``prefix`` is lossless. With ``substitute`` the wording of a cached chunk above the threshold stands in for
        a reworded one unless a number, a negation or a name differs; it is off unless listed. An empty list turns
        reuse off.
    threshold
        Cosine similarity in ``[0, 1]`` that a cached chunk must reach to be nominated for the ``similar`` or
        ``substitute`` tier. Raising it only takes nominees away; 1.0 nominates identical embeddings only. What is
        copied from a nominee in the ``similar`` tier is decided by token ids alone.
    min_span
        The shortest run of tokens, at least 1, worth reusing on its own.
    repair
        Which reused tokens are recomputed: ``none``; ``query``: those that the question attends to most;
        ``head``: the first of each run; ``deviation``: those whose K/V deviate most after the first layer;
        ``head+query`` and ``query+deviation``: both on one budget; ``random``: the control for measurements.
        Tokens of the ``prefix`` tier need no repair.
    recompute_ratio
        Budget of the repair, as a share in ``[0, 1]`` of the reused tokens; the pass that selects them is
        charged to it. Where the budget does not pay for that pass, ``query`` goes by the tokens' places alone and
        ``deviation`` recomputes nothing, and the report says so. Unused when ``repair`` is ``none``.
    shift
        Whether reused tokens that are not recomputed are moved, layer by layer, by the mean difference that
        recomputing their neighbours showed. Unused when nothing is recomputed.
    question_tokens
        How many of the last computed tokens, at most, stand for "the question" when ``repair`` goes by it. Mean KL on
        the demo model was the same with 64, 32 and 16, and the pass over them costs time.
    head_tokens
        How many tokens of each run, at most, are its head when ``repair`` is ``head`` or ``head+query``.
    max_nominees
        How many similar chunks are considered for one chunk of the prompt, at most, the most similar first. With
        more than one the donor that lends most is taken; then raising the threshold may, rarely, add to reuse, since
        without one donor another may fit its neighbours better.
    continuing
        Whether a prompt that begins with the whole prompt of an earlier request goes on from just the K/V that this
        request was answered from (tier ``continued``): as lossy as they were then, not repaired again, and the same
        request gets the same answer. They are lent to no other request, and end with the tiers that they rest on. A
        call with a policy of its own neither continues nor is continued.
    worth_it
        Whether a hit is declined where fetching, placing and repairing it is estimated to take longer than computing
        it, by a wide margin. Nothing is declined before prefill and the cache were timed.
    audit_rate
        Share in ``[0, 1]`` of the requests with approximate reuse that are audited: after the answer has gone
        out, the full prefill runs in the background and its first-token logits are compared with those that
        the answer began from. This is what the bound rests on; each audit costs one full prefill, so 0.02 costs
        2 % of what serving without reuse would. A tier that is tried again after it was switched off is audited
        at every request until it is judged. 0 turns audits off, and then nothing is bounded.
    max_kl
        An audited request violates where KL(full prefill || reuse) of the first token exceeds this, in nats,
        above 0. At 0.1 no set of first tokens has changed its probability by more than 0.23 (Pinsker).
    max_violation_rate
        Bound on the share of violations, in ``[0.001, 1)``, for each approximate tier: where audits say that it is
        exceeded, the tier's recompute ratio and threshold are raised, and at last it is switched off for a time.
        The bound is statistical: it speaks of many requests like those of late, not of one.
    audit_confidence
        How sure the audits must be of either side of the bound before a setting moves, in ``[0.5, 1)``.
    max_recompute_ratio
        Highest recompute ratio that the audits may raise to, as a share in ``[0, 1]``; no effect below
        ``recompute_ratio``.

    Raises
    ------
    PolicyError
        If a value is unknown or out of range; the sentence names the field.
    """

    tiers: tuple[Tier, ...] = DEFAULT_TIERS
    threshold: float = 0.85
    min_span: int = 8
    repair: str = "query"
    recompute_ratio: float = 0.08
    shift: bool = True
    question_tokens: int = 32
    head_tokens: int = 32
    max_nominees: int = 1
    continuing: bool = True
    worth_it: bool = True
    audit_rate: float = 0.02
    max_kl: float = 0.1
    max_violation_rate: float = 0.05
    audit_confidence: float = 0.95
    max_recompute_ratio: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiers", _tiers(self.tiers))
        object.__setattr__(self, "threshold", _share("threshold", self.threshold, "it is a cosine similarity"))
        ratio = _share("recompute_ratio", self.recompute_ratio, "it is a share of the reused tokens")
        object.__setattr__(self, "recompute_ratio", ratio)
        if self.repair not in REPAIRS:
            raise PolicyError(f"repair {self.repair!r} is unknown; choose one of {', '.join(REPAIRS)}")
        for field in ("shift", "continuing", "worth_it"):
            if not isinstance(getattr(self, field), bool):
                raise PolicyError(f"{field} {getattr(self, field)!r} must be true or false")
        for field in ("min_span", "question_tokens", "head_tokens", "max_nominees"):
            _at_least_one(field, getattr(self, field))
        self._check_audit()

    def _check_audit(self) -> None:
        checked = {
            "audit_rate": _share("audit_rate", self.audit_rate, "it is a share of the requests"),
            "max_recompute_ratio": _share("max_recompute_ratio", self.max_recompute_ratio, "it is a share"),
            "max_kl": _number("max_kl", self.max_kl, "a number of nats above 0", lambda v: 0.0 < v < math.inf),
            "max_violation_rate": _number(
                "max_violation_rate", self.max_violation_rate, "a share in [0.001, 1)", lambda v: 0.001 <= v < 1.0
            ),
            "audit_confidence": _number(
                "audit_confidence", self.audit_confidence, "a probability in [0.5, 1)", lambda v: 0.5 <= v < 1.0
            ),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)


def _tiers(names: Iterable[str]) -> tuple[Tier, ...]:
    """Return the named tiers without duplicates, the strictest first."""
    known = ", ".join(REUSE_TIERS)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise PolicyError(f"tiers {names!r} must be a list of names; known tiers are {known}")
    wanted = list(names)
    for name in wanted:
        if name not in REUSE_TIERS:
            raise PolicyError(f"tier {str(name)!r} is unknown; choose from {known}")
    return tuple(tier for tier in REUSE_TIERS if tier in wanted)


def _share(field: str, value: object, because: str) -> float:
    return _number(field, value, f"a number in [0, 1]: {because}", lambda v: 0.0 <= v <= 1.0)


def _number(field: str, value: object, wanted: str, fits: Callable[[float], bool]) -> float:
    # NaN fails every comparison, so it is refused here as well.
    if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
        shown = "NaN" if isinstance(value, float) and math.isnan(value) else repr(value)
        raise PolicyError(f"{field} {shown} must be {wanted}")
    return float(value)


def _at_least_one(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PolicyError(f"{field} {value!r} must be a whole number of at least 1")
