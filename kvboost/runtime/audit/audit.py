"""The audit: on a sampled share of requests the full prefill runs in the shadow, and the difference is logged.

The shadow runs on one background thread after the answer has gone out. What it compares with is what the
request itself saw: nothing of the reuse is computed again. Requests that reuse the prefix tier alone are not
audited: their K/V are those of an ordinary prefill.

What is sampled is the requests that found the thread free: under a load that never leaves room for a shadow,
audits are skipped (and counted), and what they would have said is not known.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass

from transformers import PreTrainedModel

from kvboost.background import give_way
from kvboost.runtime.audit.log import AuditLog, AuditRecord, figures
from kvboost.runtime.audit.shadow import Difference, Seen, Watch, difference_of
from kvboost.runtime.control.controller import Controller
from kvboost.runtime.control.counters import ReuseCounters
from kvboost.runtime.control.effective_policy import EffectivePolicy, loosest
from kvboost.runtime.plan.plan import Plan
from kvboost.runtime.prepare.prepared import Prepared
from kvboost.runtime.prepare.report import count_tiers, tier_spans
from kvboost.types import Tier

MAX_WAITING = 2
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Case:
    """A request to be audited: how it was served, and what it saw. Without its slab, which is large."""

    namespace: str
    plan: Plan
    tier: Tier
    effective: EffectivePolicy
    recomputed: tuple[int, ...]
    recompute_ratio: float
    watch: Watch
    row: int
    token_ids: tuple[int, ...]


class Audit:
    """Draws requests, runs their full prefill in the background, and tells the controller.

    Parameters
    ----------
    unchanged
        Whether the model is still the one of a namespace: an audit against other weights would say nothing.
    seed
        Of the draw, so that a run can be repeated.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        namespace: str,
        controller: Controller,
        counters: ReuseCounters,
        unchanged: Callable[[str], bool],
        seed: int = 0,
    ) -> None:
        self.log = AuditLog(namespace)
        self.controller = controller
        self._model = model
        self._counters = counters
        self._unchanged = unchanged
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(1, "kvboost-audit", initializer=give_way)
        self._pending: set[Future[None]] = set()

    def wants(self, prepared: Prepared) -> bool:
        """Draw whether a request is audited: each one with approximate reuse is drawn independently."""
        tier, effective = _tier_of(prepared.plan), prepared.effective
        if tier is None or effective is None or effective.policy.audit_rate == 0.0:
            return False
        if effective.steers and tier in effective.rules and effective.rules[tier].on_probation:
            return True
        with self._lock:
            return self._draw.random() < effective.policy.audit_rate

    def submit(self, prepared: Prepared, watch: Watch, row: int, token_ids: Sequence[int]) -> None:
        """Audit a request that was drawn, in the background; skipped, and counted, where two are waiting already.

        Parameters
        ----------
        row
            Of the watch.
        token_ids
            Prompt and answer; the prompt alone where the row's passes did not follow one answer (beams).
        """
        tier, effective = _tier_of(prepared.plan), prepared.effective
        if tier is None or effective is None:
            raise ValueError("only a request with approximate reuse can be audited; ask wants() before submitting")
        case = _Case(
            namespace=prepared.namespace,
            plan=prepared.plan,
            tier=tier,
            effective=effective,
            recomputed=prepared.recomputed,
            recompute_ratio=prepared.recompute_ratio,
            watch=watch,
            row=row,
            token_ids=tuple(token_ids),
        )
        with self._lock:
            self._pending = {job for job in self._pending if not job.done()}
            if len(self._pending) >= MAX_WAITING:
                self._counters.add("audit_skipped")
                return
            self._pending.add(self._executor.submit(self._run, case))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything submitted was audited, ``timeout_s`` at most."""
        with self._lock:
            pending = set(self._pending)
        wait(pending, timeout_s)

    def close(self) -> None:
        """Wait for the running audit, drop what is waiting, and stop the thread."""
        self._executor.shutdown(cancel_futures=True)

    def summary(self) -> dict[str, object]:
        """Return the state of the audit, ready for JSON.

        ``audits``, ``violations``, ``skipped`` and ``failures`` count since the start; ``tiers`` tells how each
        approximate tier stands, and means over its newest records; ``mixes`` gives the same means by mix.
        """
        counts = self._counters.snapshot()
        tiers = {
            str(tier): {
                **asdict(status),
                "audits_in_all": counts.get(f"audits_{tier}", 0),
                "violations_in_all": counts.get(f"audit_violations_{tier}", 0),
                "off": status.off,
                "rate_bounds": list(status.rate_bounds),
                "newest": figures(self.log.records(tier)),
            }
            for tier, status in self.controller.status().items()
        }
        return {
            "namespace": self.log.namespace,
            "audits": counts.get("audits", 0),
            "violations": counts.get("audit_violations", 0),
            "skipped": counts.get("audit_skipped", 0),
            "failures": counts.get("audit_failures", 0),
            "mean_kl": figures(self.log.records())["mean_kl"],
            "tiers": tiers,
            "tiers_off": [name for name, tier in tiers.items() if tier["off"]],
            "mixes": self.log.by_mix(),
        }

    def _run(self, case: _Case) -> None:
        """Audit one case. A shadow that fails costs its figures, never a request."""
        start_s = time.perf_counter()
        try:
            if not self._unchanged(case.namespace):
                self._counters.add("audit_skipped")
                return
            seen = Seen.of(case.watch, case.row, case.token_ids, case.plan.num_tokens)
            difference = difference_of(self._model, seen)
            if not self._unchanged(case.namespace):  # meanwhile
                self._counters.add("audit_skipped")
                return
        except Exception as error:  # noqa: BLE001
            self._counters.add("audit_failures")
            _log.warning("an audit failed with %s; its request stays unaudited", type(error).__name__)
            return
        self._settle(case, difference, time.perf_counter() - start_s)

    def _settle(self, case: _Case, difference: Difference, duration_s: float) -> None:
        tier, effective = case.tier, case.effective
        record = AuditRecord(
            namespace=self.log.namespace,
            tier=tier,
            tokens_by_tier=count_tiers(tier_spans(case.plan, case.recomputed)),
            recompute_ratio=case.recompute_ratio,
            difference=difference,
            violation=difference.kl_first > effective.policy.max_kl,
            steers=effective.steers and tier in effective.rules,
            duration_s=duration_s,
        )
        self.log.add(record)
        for name in ("audits", f"audits_{tier}"):
            self._counters.add(name)
        if record.violation:
            for name in ("audit_violations", f"audit_violations_{tier}"):
                self._counters.add(name)
        if record.steers:
            self.controller.observe(tier, effective.rules[tier].epoch, record.violation)


def _tier_of(plan: Plan) -> Tier | None:
    return loosest(plan.tiers)
