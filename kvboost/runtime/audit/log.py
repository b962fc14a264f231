"""What the audits found, by tier and by mix of tiers; no prompt text, no tokens."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvboost.runtime.audit.shadow import Difference
from kvboost.types import Tier

HISTORY = 256
"""Records that are kept for each tier."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One audited request.

    Attributes
    ----------
    namespace
        :attr:`~kvboost.types.Namespace.key` of the model that served it.
    tier
        The loosest approximate tier that lent tokens: it answers for the request.
    tokens_by_tier
        How the prompt's tokens came about.
    recompute_ratio
        What repair cost, as in the request's report.
    difference
        Full prefill against reuse.
    violation
        Whether ``difference.kl_first`` was above the policy's ``max_kl``. A changed top token alone is none:
        between two tokens that are nearly as likely, rounding changes it as well, and a change against a clear
        preference shows in the KL.
    steers
        Whether the controller was told; not so for a policy of the call's own.
    duration_s
        What the shadow took.
    """

    namespace: str
    tier: Tier
    tokens_by_tier: Mapping[Tier, int]
    recompute_ratio: float
    difference: Difference
    violation: bool
    steers: bool
    duration_s: float

    @property
    def mix(self) -> str:
        """The approximate tiers that lent tokens: ``exact``, ``similar`` or ``exact+similar``."""
        lent = [tier for tier, tokens in self.tokens_by_tier.items() if tokens and tier in _APPROXIMATE]
        return "+".join(sorted(lent)) or str(self.tier)


_APPROXIMATE = (Tier.EXACT, Tier.SIMILAR, Tier.SUBSTITUTE)


class AuditLog:
    """The newest records of each tier, in one namespace. Safe to use from several threads."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._lock = threading.Lock()
        self._records: dict[Tier, deque[AuditRecord]] = {}

    def add(self, record: AuditRecord) -> None:
        """Keep a record, and forget the tier's oldest beyond 256."""
        with self._lock:
            self._records.setdefault(record.tier, deque(maxlen=HISTORY)).append(record)

    def records(self, tier: Tier | None = None) -> tuple[AuditRecord, ...]:
        """Return the records of one tier, or of all, each tier's oldest first."""
        with self._lock:
            wanted = self._records.values() if tier is None else [self._records.get(tier, ())]
            return tuple(record for records in wanted for record in records)

    def by_mix(self) -> dict[str, dict[str, float | int | None]]:
        """Return the figures of the kept records by mix of tiers."""
        records = self.records()
        return {mix: figures([r for r in records if r.mix == mix]) for mix in sorted({r.mix for r in records})}


def figures(records: Sequence[AuditRecord]) -> dict[str, float | int | None]:
    """Return means over ``records``, ready for JSON.

    ``mean_kl`` is over finite losses; ``top1_agreement`` over answers; ``diverged`` counts answers that differ,
    ``mean_first_divergence`` says where, in answer tokens.
    """
    found = [record.difference for record in records]
    at = [d.first_divergence for d in found if d.first_divergence is not None]
    return {
        "records": len(records),
        "violations": sum(record.violation for record in records),
        "mean_kl": _mean(d.kl_first for d in found if math.isfinite(d.kl_first)),
        "top1_first": _mean(float(d.top1_first) for d in found),
        "top1_agreement": _mean(d.top1_agreement for d in found if d.top1_agreement is not None),
        "diverged": len(at),
        "mean_first_divergence": _mean(at),
    }


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None
