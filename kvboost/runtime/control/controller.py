"""The controller: keeps the share of requests that lose too much under the user's bound.

Each approximate tier climbs a ladder of settings: higher recompute ratio and, where an embedding nominates,
higher threshold. It climbs when the audits say with confidence that the share of violations is above
``max_violation_rate``, it steps down when they say with confidence that it is not, and off the ladder's top
it is switched off and tried again after a cool-down. What it never does is serve looser than the user's policy.

The bound is statistical. It speaks of the share of requests like those of late, not of one request; a share
slightly above the bound takes many audits to tell from the bound itself; and what no audit saw (first tokens
that agree and an answer that does not) it does not cover. The chance that a share of violations under the
bound is called above it is at most ``1 - audit_confidence`` for all audits since the last change of the
setting together, and the same again for each look at the newest ones alone.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from dataclasses import dataclass

from kvboost.policy import ReusePolicy
from kvboost.runtime.control.confidence import rate_bounds, surely_above, surely_below
from kvboost.runtime.control.effective_policy import EffectivePolicy, Floors, TierRule, adjusted, ladder
from kvboost.types import Tier

COOL_DOWN_REQUESTS = 1000
MAX_DOUBLINGS = 6
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _TierState:
    """One tier's place on its ladder, and what was observed there."""

    ladder: tuple[Floors, ...]
    newest: deque[bool]
    patience: int
    level: int = 0
    epoch: int = 0
    audits: int = 0
    violations: int = 0
    stepped_down: bool = False
    retry_at: int | None = None
    times_off: int = 0
    on_probation: bool = False
    reason: str = ""

    def move_to(self, level: int) -> None:
        """Begin with a clean slate at ``level``: what was observed elsewhere does not count there."""
        self.level = level
        self.epoch += 1
        self.audits = self.violations = 0
        self.newest.clear()


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One tier as the controller sees it.

    Attributes
    ----------
    recompute_ratio, threshold
        Least values it is served with.
    audits, violations
        Since the last change of the setting.
    retry_in_requests
        Requests until a tier that is off is tried again; None for one that is on.
    """

    recompute_ratio: float
    threshold: float
    level: int
    top_level: int
    audits: int
    violations: int
    on_probation: bool
    retry_in_requests: int | None
    confidence: float

    @property
    def off(self) -> bool:
        """Whether the tier is switched off at present."""
        return self.retry_in_requests is not None

    @property
    def rate_bounds(self) -> tuple[float, float]:
        """Bounds of the share of violations at this setting."""
        return rate_bounds(self.violations, self.audits, self.confidence)


class Controller:
    """Decides how strictly each approximate tier is served. Safe to use from several threads.

    Parameters
    ----------
    policy
        The user's; its ``max_violation_rate`` and ``audit_confidence`` are the bound.
    cool_down_requests
        Requests before a tier that was switched off is tried again; doubled each time that it fails again.
    """

    def __init__(self, policy: ReusePolicy, cool_down_requests: int = COOL_DOWN_REQUESTS) -> None:
        self._policy = policy
        self._cool_down = cool_down_requests
        self._lock = threading.Lock()
        self._requests = 0
        # Long enough to say with confidence, at a share of violations well under the bound, that it is.
        window = math.ceil(10 / policy.max_violation_rate)
        self._probation_audits = math.ceil(1 / policy.max_violation_rate)
        self._states: dict[Tier, _TierState] = {
            tier: _TierState(ladder(policy, tier), deque(maxlen=window), patience=window)
            for tier in policy.tiers
            if tier is not Tier.PREFIX
        }

    def admit(self, policy: ReusePolicy) -> EffectivePolicy:
        """Count a request and rule on the policy that it came with."""
        with self._lock:
            self._requests += 1
            for tier, state in self._states.items():
                if state.retry_at is not None and self._requests >= state.retry_at:
                    self._retry(tier, state)
            on = {
                tier: TierRule(state.ladder[state.level], state.epoch, state.on_probation)
                for tier, state in self._states.items()
                if state.retry_at is None
            }
            off = {tier: state.reason for tier, state in self._states.items() if state.retry_at is not None}
        return adjusted(policy, on, off, steers=policy == self._policy)

    def observe(self, tier: Tier, epoch: int, violated: bool) -> None:
        """Take in one audit of a request that was served under the rule numbered ``epoch``."""
        with self._lock:
            state = self._states.get(tier)
            if state is None or epoch != state.epoch or state.retry_at is not None:
                return
            state.audits += 1
            state.violations += violated
            state.newest.append(violated)
            if self._violates(state):
                self._tighten(tier, state)
            elif self._is_held(state):
                state.times_off = 0
                state.on_probation = False
                if state.level > 0 and state.audits >= state.patience:
                    self._relax(tier, state)
            elif state.audits >= self._probation_audits:
                state.on_probation = False

    def status(self) -> dict[Tier, TierStatus]:
        """Return every approximate tier of the policy."""
        with self._lock:
            return {tier: self._status(state) for tier, state in self._states.items()}

    def _violates(self, state: _TierState) -> bool:
        """All audits at this setting find any excess in the end; the newest ones find a change soon."""
        confidence, limit = self._policy.audit_confidence, self._policy.max_violation_rate
        return surely_above(limit, state.violations, state.audits, confidence) or surely_above(
            limit, sum(state.newest), len(state.newest), confidence
        )

    def _is_held(self, state: _TierState) -> bool:
        confidence, limit = self._policy.audit_confidence, self._policy.max_violation_rate
        return surely_below(limit, sum(state.newest), len(state.newest), confidence)

    def _tighten(self, tier: Tier, state: _TierState) -> None:
        if state.stepped_down:
            # The step down was wrong; without this a share near the bound would go up and down for ever.
            state.patience = min(2 * state.patience, 2**MAX_DOUBLINGS * (state.newest.maxlen or 1))
            state.stepped_down = False
        seen = f"{state.violations} of {state.audits} audited requests exceeded max_kl {self._policy.max_kl:g}"
        if state.level + 1 == len(state.ladder):
            self._switch_off(tier, state, seen)
            return
        state.move_to(state.level + 1)
        _log.info("tier %r goes to step %d of %d: %s", str(tier), state.level, len(state.ladder) - 1, seen)

    def _switch_off(self, tier: Tier, state: _TierState, seen: str) -> None:
        wait = self._cool_down * 2 ** min(state.times_off, MAX_DOUBLINGS)
        state.times_off += 1
        state.retry_at = self._requests + wait
        state.on_probation = False
        state.reason = f"tier '{tier}' switched off by the audit: {seen} at its strictest setting"
        state.move_to(state.level)
        _log.warning("%s; tried again after %d requests", state.reason, wait)

    def _retry(self, tier: Tier, state: _TierState) -> None:
        state.retry_at = None
        state.on_probation = True
        state.move_to(len(state.ladder) - 1)
        _log.info("tier %r is tried again at its strictest setting", str(tier))

    def _relax(self, tier: Tier, state: _TierState) -> None:
        state.stepped_down = True
        state.move_to(state.level - 1)
        _log.info("tier %r goes down to step %d of %d", str(tier), state.level, len(state.ladder) - 1)

    def _status(self, state: _TierState) -> TierStatus:
        floors = state.ladder[state.level]
        return TierStatus(
            recompute_ratio=max(floors.recompute_ratio, self._policy.recompute_ratio),
            threshold=max(floors.threshold, self._policy.threshold),
            level=state.level,
            top_level=len(state.ladder) - 1,
            audits=state.audits,
            violations=state.violations,
            on_probation=state.on_probation,
            retry_in_requests=None if state.retry_at is None else max(state.retry_at - self._requests, 0),
            confidence=self._policy.audit_confidence,
        )
